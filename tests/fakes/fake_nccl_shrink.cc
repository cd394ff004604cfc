// The fake NCCL's way from a communicator to a smaller one: revoked, shrunk by all but those left
// out, then aborted, never finalized or destroyed.

#include <thread>

#include "tests/fakes/fake_comm.h"

using namespace ddprun::worker_sdk;  // The C names below are in its words.
using namespace ddprun::test;

namespace {

bool is(const Comm& comm, const char* fault) { return number(fault, -1) == comm.rank; }

// Until the communicator is aborted.
void block(const Comm& comm) {
  while (!comm.ending.load()) comm.wire->listen(comm.wire->bell.load());
}

}  // namespace

namespace ddprun::test {

int progress_of_shrink(Comm& comm) {
  {
    const std::lock_guard lock(comm.mutex);
    if (comm.running > 0 || is(comm, "revoke_hang")) return kNcclInProgress;
  }
  if (!comm.child_handle) return kNcclSuccess;
  if (is(comm, "shrink_hang")) return kNcclInProgress;
  int status = join(*comm.child);
  if (status == kNcclSuccess && is(comm, "shrink_late")) status = kNcclSystemError;
  if (status == kNcclSuccess) {
    *comm.child_handle = handle_of(std::move(comm.child));
  }
  if (status != kNcclInProgress) comm.child_handle = nullptr;
  return status;
}

}  // namespace ddprun::test

extern "C" {

int ncclCommRevoke(NcclComm handle, int flags) {
  const CommHandle comm = comm_of(handle);
  if (flags != 0 || comm->revoked.load()) return kNcclInvalidArgument;
  if (in_progress(*comm)) rule_broken("a communicator is revoked while a call is in progress");
  note(comm->rank, "revocation of " + std::to_string(comm->size), "comms");
  comm->error.store(kNcclSuccess);
  comm->polls = 0;
  comm->revoked.store(true);
  comm->aborted.store(true);  // For what is in streams.
  comm->wire->ring();
  if (is(*comm, "revoke_blocks")) block(*comm);
  return kNcclInProgress;
}

int ncclCommShrink(NcclComm handle, int* excluded, int count, NcclComm* made, NcclConfig* config,
                   int flags) {
  const CommHandle comm = comm_of(handle);
  if (!comm->revoked.load() || flags != kNcclShrinkAbort) rule_broken("shrink of what still runs");
  if (count < 1 || config->blocking != 0) return kNcclInvalidArgument;
  if (is(*comm, "shrink_exit")) ::_exit(9);
  if (is(*comm, "shrink_error")) return kNcclSystemError;
  if (is(*comm, "shrink_blocks")) {
    block(*comm);
    return kNcclInProgress;  // Nothing will come of it.
  }
  auto child = std::make_shared<Comm>();
  child->size = comm->size - count;
  child->rank = comm->rank;
  child->device = comm->device;
  child->file = comm->file + "-" + std::to_string(++comm->shrinks);
  for (int i = 0; i < count; ++i) {
    if (excluded[i] == comm->rank) return kNcclInvalidArgument;
    if (excluded[i] < comm->rank) --child->rank;
    child->file += "." + std::to_string(excluded[i]);
  }
  note(comm->rank, "shrink to " + std::to_string(child->size), "comms");
  {
    const std::lock_guard lock(all_comms().mutex);
    all_comms().list.push_back(child);
  }
  *made = nullptr;
  comm->child = std::move(child);
  comm->child_handle = made;
  return kNcclSuccess;  // It is in progress all the same.
}
}
