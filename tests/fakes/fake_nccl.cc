// An NCCL for machines without a GPU, on the streams of fake_cuda.cc: ranks are threads or
// processes that share a file named after the unique id. Like the real one on NVLink it never
// notices that a peer is gone, and hangs if ranks call different things.
//
// FAKE_NCCL names what goes wrong. "R:N" is the Nth operation of rank R, counted from 1:
//   version=22809     what ncclGetVersion returns; in_progress=3: each call is so for 3 polls
//   connect=1         the first collective does so until all ranks have called theirs
//   stuck=N           the Nth call of each rank stays in progress for ever
//   destroy_hang=R    ncclCommDestroy never returns; abort_hang=R: nor does ncclCommAbort
//   deaf_ids=1        so many unique ids of this process lead nowhere
//   init_error=R      joining fails on that rank; init_hang=R: never ends; init_exit=R: kills it
//   refuse=R:N        the call fails; async_error=R:N: it fails later; hang=R:N: it never ends
//   blocks=R:N        the call does not return before its communicator is aborted
//   words=/path       errors are not explained before that file is there, or 20 s have passed;
//                     /path.wanted is there as soon as it is requested, /path.late then
//   windows=0         it makes none; window_hang=R: a rank never ends to make one
//   revoke_hang=R     ncclCommRevoke stays in progress; revoke_blocks=R: it does not return
//   shrink_hang=R     so does ncclCommShrink; shrink_blocks=R; shrink_error=R: it fails;
//   shrink_late=R     so it does after the others; shrink_exit=R: it is killed. R: in the old one
//   log=/path         gets what becomes of memory; comms=/path: of communicators
//   device_only=1     memory of the host is refused, as the real one has it
//   abort_syncs=1     it waits for the kernels on its device of communicators that are not aborted

#include <fcntl.h>

#include <chrono>
#include <cstring>
#include <random>

#include "tests/fakes/fake_comm.h"
#include "tests/fakes/fake_profiler.h"
#include "tests/fakes/fake_sums.h"
#include "worker_sdk/base/retry.h"
#include "worker_sdk/transport/reduce.h"

using namespace ddprun::worker_sdk;  // The C names below are in its words.
using ddprun::DataType;
using ddprun::ReduceOp;
using namespace ddprun::test;

namespace {

enum Kind { kAllReduce = 1, kBroadcastKind, kReduceScatter, kAllGather, kReduceKind };

struct Collective {
  FakeSignature what;
  const char* in = nullptr;
  char* out = nullptr;
};

void hang(Comm& comm) {
  comm.await([] { return false; });
}

// All ranks' bytes [at, at + n) of `in`, put where all ranks see them; then `take`.
template <class Take>
bool share(Comm& comm, const char* in, std::size_t n, const Take& take) {
  if (in && n > 0) std::memcpy(comm.wire->chunks[comm.rank], in, n);
  if (!comm.barrier()) return false;
  take();
  return comm.barrier();
}

bool reduce_chunks(Comm& comm, const Collective& c, std::size_t at, bool mine, char* out) {
  const std::size_t element = bytes_of(c.what.type), total = c.what.count * element;
  const DataType type = ours(c.what.type);
  const bool premultiplied = is_premultiplied(c.what);
  const ReduceOp op = premultiplied ? ReduceOp::sum : op_of(c.what.op);
  std::vector<char> part(premultiplied ? std::min(kFakeChunk, total) : 0);
  for (std::size_t done = 0; done < total; done += kFakeChunk) {
    const std::size_t n = std::min(kFakeChunk, total - done);
    const char* in = c.in + at + done;
    if (premultiplied) {
      std::memcpy(part.data(), in, n);
      premultiply(type, part.data(), n / element, comm.size);
      in = part.data();
    }
    const bool well = share(comm, in, n, [&] {
      const void* sources[kFakeRanks];
      for (int r = 0; r < comm.size; ++r) sources[r] = comm.wire->chunks[r];
      if (mine) {
        ddprun::worker_sdk::reduce(type, op, out + done, {sources, comm.size}, n / element);
      }
    });
    if (!well) return false;
  }
  return true;
}

void move_chunks(Comm& comm, const Collective& c) {
  const std::size_t total = c.what.count * bytes_of(c.what.type);
  const bool gather = c.what.kind == kAllGather;
  for (std::size_t done = 0; done < total; done += kFakeChunk) {
    const std::size_t n = std::min(kFakeChunk, total - done);
    const bool prints = gather || comm.rank == c.what.root;
    const bool well = share(comm, prints ? c.in + done : nullptr, n, [&] {
      for (int r = 0; r < comm.size; ++r) {
        char* to = gather ? c.out + static_cast<std::size_t>(r) * total : c.out;
        if (gather || r == c.what.root) std::memcpy(to + done, comm.wire->chunks[r], n);
      }
    });
    if (!well) return;
  }
}

void carry_out(Comm& comm, const Collective& c) {
  if (!agree(comm, c.what)) return hang(comm);
  const std::size_t part = c.what.count * bytes_of(c.what.type);
  switch (c.what.kind) {
    case kAllReduce: reduce_chunks(comm, c, 0, true, c.out); return;
    case kReduceKind: reduce_chunks(comm, c, 0, comm.rank == c.what.root, c.out); return;
    case kReduceScatter:
      for (int r = 0; r < comm.size; ++r) {
        if (!reduce_chunks(comm, c, static_cast<std::size_t>(r) * part, r == comm.rank, c.out)) {
          return;
        }
      }
      return;
    default: move_chunks(comm, c);
  }
}

struct Message {
  bool sends = false;
  char* data = nullptr;
  std::size_t left = 0;
  int peer = 0;
};

FakeOperation operation_of(const Message& m) {
  return {m.sends ? "Send" : "Recv", kNcclUint8, m.left, true, false};
}

bool move_piece(Comm& comm, Message& m) {
  FakePipe& pipe =
      m.sends ? comm.wire->pipes[comm.rank][m.peer] : comm.wire->pipes[m.peer][comm.rank];
  if (m.left == 0 || pipe.full.load() != (m.sends ? 0U : 1U)) return false;
  if (!m.sends && pipe.bytes > m.left) return false;  // The real one would not end, either.
  const std::size_t n = m.sends ? std::min(kFakeChunk, m.left) : pipe.bytes;
  if (m.sends) std::memcpy(pipe.piece, m.data, n);
  if (!m.sends) std::memcpy(m.data, pipe.piece, n);
  if (m.sends) pipe.bytes = n;
  m.data += n;
  m.left -= n;
  pipe.full.store(m.sends ? 1 : 0);
  comm.wire->ring();
  return true;
}

void exchange(Comm& comm, std::vector<Message> messages) {
  comm.await([&] {
    bool all = true;
    for (std::size_t i = 0; i < messages.size(); ++i) {
      // Between two ranks one after the other.
      const bool first = std::none_of(
          messages.begin(), messages.begin() + static_cast<long>(i), [&](const Message& m) {
            return m.left > 0 && m.sends == messages[i].sends && m.peer == messages[i].peer;
          });
      while (first && move_piece(comm, messages[i])) {
      }
      all = all && messages[i].left == 0;
    }
    return all;
  });
}

// What goes wrong with this call, or puts it into the stream.
int submit(NcclComm handle, CudaStream stream, const std::vector<FakeOperation>& operations,
           const std::function<void(Comm&)>& work) {
  const CommHandle comm = comm_of(handle);
  if (!comm->ready || in_progress(*comm))
    return kNcclInvalidUsage;  // The last call is in progress.
  ++comm->operations;
  if (comm->is("refuse")) return kNcclSystemError;
  if (comm->is("blocks")) {
    while (!comm->ending.load()) comm->wire->listen(comm->wire->bell.load());
    return kNcclSystemError;
  }
  const bool fails = comm->is("async_error"), hangs = comm->is("hang");
  if (comm->operations == 1 && number("connect", 0)) {
    comm->connecting.store(true);
    comm->wire->connecting.fetch_add(1);
  }
  if (comm->operations == number("stuck", -1)) comm->connecting.store(true);
  const bool captured = ddprun::test::is_captured(stream);
  const auto graph = captured ? comm->graphs : nullptr;
  if (fails && !captured) comm->error.store(kNcclRemoteError);
  if (!captured) {
    const std::lock_guard lock(comm->mutex);
    ++comm->running;
  }
  const auto kernel =
      std::make_shared<ProfiledKernel>(captured ? nullptr : comm->profile, comm->rank, operations);
  ddprun::test::enqueue(stream, [comm, fails, hangs, work, captured, kernel, graph] {
    if (captured) {
      const std::lock_guard lock(comm->mutex);
      ++comm->running;
      if (fails) comm->error.store(kNcclRemoteError);
    }
    kernel->begins();
    fails || hangs ? hang(*comm) : work(*comm);
    if (!comm->aborted.load()) kernel->ends();
    const std::lock_guard lock(comm->mutex);
    --comm->running;
    comm->idle.notify_all();
  });
  kernel->enqueued();
  comm->polls = number("in_progress", 0);
  return comm->polls > 0 ? kNcclInProgress : kNcclSuccess;
}

int submit(NcclComm comm, CudaStream stream, const char* function, const Collective& c) {
  const bool on_window = is_window(*comm_of(comm), c.in) && is_window(*comm_of(comm), c.out);
  return submit(comm, stream, {{function, c.what.type, c.what.count, false, on_window}},
                [c](Comm& me) { carry_out(me, c); });
}

bool bad_memory(const void* address) {
  return number("device_only", 0) && !ddprun::test::is_devices(address);
}

struct Group {
  bool open = false;
  NcclComm comm = nullptr;
  CudaStream stream = nullptr;
  std::vector<Message> messages;
};
thread_local Group group;

int add_message(NcclComm comm, CudaStream stream, const Message& message) {
  if (bad_memory(message.data)) return kNcclInvalidArgument;
  if (group.open) {
    group.comm = comm;
    group.stream = stream;
    group.messages.push_back(message);
    return kNcclSuccess;
  }
  return submit(comm, stream, {operation_of(message)},
                [message](Comm& c) { exchange(c, {message}); });
}

void wait_for_ever() {
  std::mutex mutex;
  std::condition_variable never;
  std::unique_lock lock(mutex);
  never.wait(lock, [] { return false; });
}

bool map_wire(Comm& comm) {
  const int fd = ::open(comm.file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (fd < 0 || ::ftruncate(fd, sizeof(FakeWire)) != 0) return false;
  void* memory = ::mmap(nullptr, sizeof(FakeWire), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  ::close(fd);
  if (memory == MAP_FAILED) return false;
  comm.wire = static_cast<FakeWire*>(memory);
  return true;
}

void touch(const std::string& path) {
  ::close(::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

void await_words() {
  const std::string path = injected("FAKE_NCCL", "words");
  if (path.empty()) return;
  touch(path + ".wanted");
  const auto give_up = Clock::now() + std::chrono::seconds(20);
  if (!retry_until(give_up, [&] { return ::access(path.c_str(), F_OK) == 0; })) {
    touch(path + ".late");
  }
}

// Counts the ids since the fault was asked for.
bool next_is_deaf() {
  static std::mutex mutex;
  static std::string* requested = new std::string;
  static int left = 0;
  const char* faults = std::getenv("FAKE_NCCL");
  const std::lock_guard lock(mutex);
  if (*requested != (faults ? faults : "")) {
    *requested = faults ? faults : "";
    left = number("deaf_ids", 0);
  }
  return left-- > 0;
}

}  // namespace

namespace ddprun::test {

// One check: have all ranks come?
int join(Comm& comm) {
  if (number("init_exit", -1) == comm.rank) ::raise(SIGKILL);
  if (number("init_error", -1) == comm.rank) return kNcclSystemError;
  if (comm.deaf || number("init_hang", -1) == comm.rank) return kNcclInProgress;
  if (!comm.wire && !map_wire(comm)) return kNcclSystemError;
  if (!comm.counted) comm.wire->joined.fetch_add(1);
  comm.counted = true;
  if (comm.wire->joined.load() < static_cast<std::uint32_t>(comm.size)) return kNcclInProgress;
  comm.ready = true;
  comm.polls = 0;
  ::unlink(comm.file.c_str());
  return kNcclSuccess;
}

}  // namespace ddprun::test

extern "C" {

int ncclGetVersion(int* version) {
  *version = number("version", 22809);
  return kNcclSuccess;
}

int ncclGetUniqueId(NcclUniqueId* id) {
  std::random_device random;
  std::memset(id, 0, sizeof(*id));
  const bool deaf = next_is_deaf();
  std::snprintf(id->internal, sizeof(id->internal), "%c%08x%08x", deaf ? 'd' : 'i', random(),
                random());
  return kNcclSuccess;
}

int ncclCommInitRankScalable(NcclComm* result, int size, int rank, int ids, NcclUniqueId* id,
                             NcclConfig* config) {
  if (size > kFakeRanks || ids < 1) return kNcclInvalidArgument;
  auto comm = std::make_shared<Comm>();
  note(rank, "init of " + std::to_string(size), "comms");
  comm->rank = rank;
  comm->size = size;
  comm->device = ddprun::test::current_device();
  {
    const std::lock_guard lock(all_comms().mutex);
    all_comms().list.push_back(comm);
  }
  comm->deaf = id[0].internal[0] == 'd';
  comm->file = "/dev/shm/ddprun-fake-nccl-" + std::string(id[0].internal);
  for (int i = 1; i < ids; ++i) comm->file += id[i].internal + 10;
  comm->profile = profile_communicator(config->comm_name ? config->comm_name : "", size, rank);
  *result = handle_of(comm);
  comm->error.store(join(*comm));
  const int status = comm->error.load();
  if (status != kNcclInProgress && status != kNcclSuccess) return status;
  comm->error.store(kNcclSuccess);
  while (config->blocking != 0 && !comm->ready) {
    comm->wire->listen(comm->wire->bell.load());
    join(*comm);
  }
  return comm->ready ? kNcclSuccess : kNcclInProgress;
}

int ncclCommInitRankConfig(NcclComm* comm, int size, NcclUniqueId id, int rank,
                           NcclConfig* config) {
  return ncclCommInitRankScalable(comm, size, rank, 1, &id, config);
}

int ncclCommGetAsyncError(NcclComm handle, int* status) {
  const CommHandle alive = comm_of(handle);
  Comm& comm = *alive;
  *status = comm.error.load();
  if (*status != kNcclSuccess) return kNcclSuccess;
  if (comm.revoked.load()) {
    *status = progress_of_shrink(comm);
    return kNcclSuccess;
  }
  if (!comm.ready) {
    *status = join(comm);
    return kNcclSuccess;
  }
  if (comm.connecting.load()) {
    comm.connecting.store(comm.wire->connecting.load() < static_cast<std::uint32_t>(comm.size));
  }
  if (comm.registering.load() || comm.connecting.load()) *status = kNcclInProgress;
  if (comm.polls > 0) *status = --comm.polls > 0 ? kNcclInProgress : kNcclSuccess;
  return kNcclSuccess;
}

int ncclCommFinalize(NcclComm handle) {
  const CommHandle comm = comm_of(handle);
  if (comm->revoked.load()) rule_broken("a revoked communicator is finalized");
  if (!comm->windows.empty()) rule_broken("a communicator ends before its windows");
  return comm->ready && !in_progress(*comm) ? kNcclSuccess : kNcclInvalidUsage;
}

int ncclCommDestroy(NcclComm handle) {
  const CommHandle comm = comm_of(handle);
  if (!comm->ending && number("destroy_hang", -1) == comm->rank) wait_for_ever();
  if (comm->revoked.load() && !comm->ending) rule_broken("a revoked communicator is destroyed");
  {
    std::unique_lock lock(comm->mutex);
    comm->idle.wait(lock, [&] { return comm->running == 0; });
  }
  end_profile(comm->profile);
  drop(handle);
  return kNcclSuccess;
}

int ncclCommAbort(NcclComm handle) {
  const CommHandle comm = comm_of(handle);
  if (number("abort_hang", -1) == comm->rank) wait_for_ever();
  note(comm->rank, "abort of " + std::to_string(comm->size), "comms");
  comm->ending = true;
  comm->child.reset();
  comm->aborted.store(true);
  if (comm->wire) comm->wire->ring();
  while (number("abort_syncs", 0) && comm->wire && all_comms().spins(*comm)) {
    comm->wire->listen(comm->wire->bell.load());
  }
  // While there are graphs with its operations.
  while (comm->graphs.use_count() > 1) comm->wire->listen(comm->wire->bell.load());
  return ncclCommDestroy(handle);
}

const char* ncclGetErrorString(int status) {
  if (status != kNcclSuccess) await_words();
  return status == kNcclRemoteError ? "remote process exited or there was a network error"
                                    : "unhandled system error";
}

const char* ncclGetLastError(NcclComm) { return "a fault of the fake"; }

int ncclAllReduce(const void* in, void* out, std::size_t count, int type, int op, NcclComm comm,
                  CudaStream stream) {
  if (bad_memory(in) || bad_memory(out)) return kNcclInvalidArgument;
  const Collective c{
      {kAllReduce, type, op, 0, count}, static_cast<const char*>(in), static_cast<char*>(out)};
  return submit(comm, stream, "AllReduce", c);
}

int ncclBroadcast(const void* in, void* out, std::size_t count, int type, int root, NcclComm comm,
                  CudaStream stream) {
  if (bad_memory(in) || bad_memory(out)) return kNcclInvalidArgument;
  const Collective c{{kBroadcastKind, type, 0, root, count},
                     static_cast<const char*>(in),
                     static_cast<char*>(out)};
  return submit(comm, stream, "Broadcast", c);
}

int ncclReduce(const void* in, void* out, std::size_t count, int type, int op, int root,
               NcclComm comm, CudaStream stream) {
  if (bad_memory(in) || (out && bad_memory(out))) return kNcclInvalidArgument;
  const Collective c{
      {kReduceKind, type, op, root, count}, static_cast<const char*>(in), static_cast<char*>(out)};
  return submit(comm, stream, "Reduce", c);
}

int ncclReduceScatter(const void* in, void* out, std::size_t count, int type, int op, NcclComm comm,
                      CudaStream stream) {
  if (bad_memory(in) || bad_memory(out)) return kNcclInvalidArgument;
  const Collective c{
      {kReduceScatter, type, op, 0, count}, static_cast<const char*>(in), static_cast<char*>(out)};
  return submit(comm, stream, "ReduceScatter", c);
}

int ncclAllGather(const void* in, void* out, std::size_t count, int type, NcclComm comm,
                  CudaStream stream) {
  if (bad_memory(in) || bad_memory(out)) return kNcclInvalidArgument;
  const Collective c{
      {kAllGather, type, 0, 0, count}, static_cast<const char*>(in), static_cast<char*>(out)};
  return submit(comm, stream, "AllGather", c);
}

int ncclSend(const void* in, std::size_t count, int type, int peer, NcclComm comm,
             CudaStream stream) {
  auto* data = static_cast<char*>(const_cast<void*>(in));
  return add_message(comm, stream, {true, data, count * bytes_of(type), peer});
}

int ncclRecv(void* out, std::size_t count, int type, int peer, NcclComm comm, CudaStream stream) {
  return add_message(comm, stream, {false, static_cast<char*>(out), count * bytes_of(type), peer});
}

int ncclGroupStart() {
  group.open = true;
  return kNcclSuccess;
}

int ncclGroupEnd() {
  const Group done = std::move(group);
  group = {};
  if (done.messages.empty()) return kNcclSuccess;
  std::vector<FakeOperation> operations;
  for (const Message& message : done.messages) operations.push_back(operation_of(message));
  return submit(done.comm, done.stream, operations,
                [messages = done.messages](Comm& c) { exchange(c, messages); });
}
}
