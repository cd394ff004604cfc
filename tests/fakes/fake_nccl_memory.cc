// The fake NCCL's memory: what is registered with a communicator, and symmetric windows, with the
// rules of the real ones: only memory of ncclMemAlloc, by all ranks with the same size, windows
// made and dropped by all in the same order, deregistered before the memory or the communicator
// ends.

#include <fcntl.h>

#include <thread>

#include "tests/fakes/fake_comm.h"

using namespace ddprun::worker_sdk;  // The C names below are in its words.
using namespace ddprun::test;

extern "C" int cudaMalloc(void** address, std::size_t bytes);
extern "C" int cudaFree(void* address);

namespace {

struct Allocated {
  std::mutex mutex;
  std::map<void*, std::size_t> blocks;
};
Allocated& allocated() {
  static Allocated* one = new Allocated;
  return *one;
}

void refuse_if_window(void* address) {
  const std::lock_guard lock(all_comms().mutex);
  for (const auto& weak : all_comms().list) {
    const auto comm = weak.lock();
    if (!comm || comm->ending.load()) continue;
    const std::lock_guard one(comm->mutex);
    if (comm->windows.contains(address) || comm->registered.contains(address)) {
      rule_broken("memory is freed that a communicator knows");
    }
  }
}

// The real one does not look, and changes what the thread of the other call reads.
void refuse_in_progress(const Comm& comm) {
  if (in_progress(comm)) rule_broken("memory is (de)registered while a call is in progress");
}

constexpr int kWindow = 100;  // A kind of FakeSignature, beside those of fake_nccl.cc.

// In the background, when what is under way on the communicator is done.
void make_window(const CommHandle& comm, void* memory, std::size_t bytes, NcclWindow* window) {
  {
    std::unique_lock lock(comm->mutex);
    comm->idle.wait(lock, [&] { return comm->running == 0; });
  }
  if (number("window_hang", -1) == comm->rank) {
    comm->await([] { return false; });
    return;
  }
  FakeSignature what{.kind = kWindow, .count = bytes};
  what.root = static_cast<int>(comm->history);
  const bool same = agree(*comm, what) && comm->barrier();
  if (!same && !comm->aborted.load()) comm->error.store(kNcclInvalidUsage);
  if (same) {
    const std::lock_guard lock(comm->mutex);
    comm->windows[memory] = bytes;
    comm->history = comm->history * 31 + bytes;
    *window = static_cast<NcclWindow>(memory);
    note(comm->rank, "window of " + std::to_string(bytes));
  }
  comm->registering.store(false);
}

}  // namespace

namespace ddprun::test {

void note(int rank, const std::string& text, const char* file) {
  const std::string path = injected("FAKE_NCCL", file);
  if (path.empty()) return;
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  const std::string line = "rank " + std::to_string(rank) + ": " + text + "\n";
  [[maybe_unused]] const auto written = ::write(fd, line.data(), line.size());
  ::close(fd);
}

}  // namespace ddprun::test

extern "C" {

int ncclMemAlloc(void** address, std::size_t bytes) {
  const int status = cudaMalloc(address, bytes);
  const std::lock_guard lock(allocated().mutex);
  allocated().blocks[*address] = bytes;
  return status;
}

int ncclMemFree(void* address) {
  refuse_if_window(address);
  {
    const std::lock_guard lock(allocated().mutex);
    if (allocated().blocks.erase(address) == 0) rule_broken("ncclMemFree of what is not NCCL's");
  }
  return cudaFree(address);
}

int ncclCommRegister(NcclComm handle, void* memory, std::size_t bytes, void** registration) {
  const CommHandle comm = comm_of(handle);
  refuse_in_progress(*comm);
  note(comm->rank, "registration of " + std::to_string(bytes));
  *registration = memory;
  const std::lock_guard lock(comm->mutex);
  comm->registered[memory] = bytes;
  return kNcclSuccess;
}

int ncclCommDeregister(NcclComm handle, void* memory) {
  const CommHandle comm = comm_of(handle);
  refuse_in_progress(*comm);
  const std::lock_guard lock(comm->mutex);
  comm->registered.erase(memory);
  return kNcclSuccess;
}

int ncclCommWindowRegister(NcclComm handle, void* memory, std::size_t bytes, NcclWindow* window,
                           int flags) {
  const CommHandle comm = comm_of(handle);
  *window = nullptr;
  if (!comm->ready || in_progress(*comm)) return kNcclInvalidUsage;
  if (number("windows", 1) == 0) return kNcclSuccess;
  const std::lock_guard lock(allocated().mutex);
  const auto block = allocated().blocks.find(memory);
  if (block == allocated().blocks.end() || block->second < bytes) return kNcclInvalidArgument;
  if (flags != kNcclWindowSymmetric) return kNcclInvalidArgument;
  comm->registering.store(true);
  std::thread(make_window, comm, memory, bytes, window).detach();
  return kNcclSuccess;  // Of 2.28 and later: it is in progress all the same.
}

int ncclCommWindowDeregister(NcclComm handle, NcclWindow window) {
  const CommHandle comm = comm_of(handle);
  refuse_in_progress(*comm);
  const std::lock_guard lock(comm->mutex);
  const auto found = comm->windows.find(window);
  if (found == comm->windows.end()) return kNcclInvalidArgument;
  comm->history = comm->history * 31 + found->second + 1;
  note(comm->rank, "end of the window of " + std::to_string(found->second));
  comm->windows.erase(found);
  return kNcclSuccess;
}
}
