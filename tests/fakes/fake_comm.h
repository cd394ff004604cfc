#pragma once
// A communicator of the fake NCCL, as fake_nccl.cc, which carries out its operations, and
// fake_nccl_memory.cc, which registers memory with it, see it.

#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tests/fakes/fake_cuda.h"
#include "tests/fakes/fake_wire.h"
#include "worker_sdk/gpu/gpu_abi.h"

namespace ddprun::test {

using worker_sdk::kNcclSuccess;
using worker_sdk::NcclComm;
using worker_sdk::NcclWindow;

inline int number(const char* key, int otherwise) {
  const std::string text = injected("FAKE_NCCL", key);
  return text.empty() ? otherwise : std::atoi(text.c_str());
}

// The test broke a rule that the real one would punish later, and elsewhere.
[[noreturn]] inline void rule_broken(const std::string& text) {
  std::fprintf(stderr, "fake nccl: %s\n", text.c_str());
  std::abort();
}

// A line for the test, if it names a file: "log=/path" for memory, "comms=/path" for communicators.
void note(int rank, const std::string& text, const char* file = "log");

struct Comm {
  FakeWire* wire = nullptr;
  std::string file;
  int rank = 0, size = 0, device = 0;
  bool deaf = false, counted = false, ready = false;
  int polls = 0;       // Until the last call is no longer in progress.
  int operations = 0;  // So far.
  std::mutex mutex;
  std::condition_variable idle;
  int running = 0;  // Operations in streams.
  std::atomic<int> error{kNcclSuccess};
  std::atomic<bool> aborted{false};
  std::atomic<bool> revoked{false};
  std::shared_ptr<Comm> child;       // That a shrink is to make of it, until all have come.
  NcclComm* child_handle = nullptr;  // Where it goes then.
  int shrinks = 0;
  std::atomic<bool> ending{false};  // By ncclCommAbort.
  // The first collective is in progress until all ranks have called theirs, as where NCCL connects
  // at run time.
  std::atomic<bool> connecting{false};
  std::shared_ptr<int> graphs = std::make_shared<int>();  // Held by captured operations, too.
  std::atomic<bool> registering{false};                   // A window, in the background.
  std::map<void*, std::size_t> registered;                // As the next ones.
  std::map<void*, std::size_t> windows;                   // By address, under the mutex.
  void* profile = nullptr;                                // A profiler's word for it.
  std::uint64_t history = 0;  // Of windows made and dropped: equal on all ranks.

  ~Comm() {
    if (wire) ::munmap(wire, sizeof(FakeWire));
    if (!ready) ::unlink(file.c_str());
  }
  bool is(const char* fault) const {
    return injected("FAKE_NCCL", fault) == std::to_string(rank) + ":" + std::to_string(operations);
  }
  template <class Condition>
  bool await(const Condition& condition) {  // False: aborted before.
    for (;;) {
      const auto seen = wire->bell.load();
      if (aborted.load()) return false;
      if (condition()) return true;
      wire->listen(seen);
    }
  }
  bool barrier() {
    const auto turn = wire->turn.load();
    if (wire->arrived.fetch_add(1) + 1 == static_cast<std::uint32_t>(size)) {
      wire->arrived.store(0);
      wire->turn.fetch_add(1);
      wire->ring();
      return true;
    }
    return await([&] { return wire->turn.load() != turn; });
  }
};

// Of this process.
struct AllComms {
  std::mutex mutex;
  std::vector<std::weak_ptr<Comm>> list;

  bool spins(const Comm& but) {
    const std::lock_guard lock(mutex);
    return std::any_of(list.begin(), list.end(), [&](const std::weak_ptr<Comm>& weak) {
      const auto comm = weak.lock();
      if (!comm || comm.get() == &but || comm->device != but.device) return false;
      const std::lock_guard one(comm->mutex);
      return comm->running > 0 && !comm->aborted.load();
    });
  }
};
inline AllComms& all_comms() {
  static AllComms* one = new AllComms;
  return *one;
}

using CommHandle = std::shared_ptr<Comm>;
// A handle stays where it is after its communicator has ended, so that a use of it is noticed.
struct AllHandles {
  std::mutex mutex;
  std::vector<std::unique_ptr<CommHandle>> list;
};
inline AllHandles& all_handles() {
  static AllHandles* one = new AllHandles;
  return *one;
}
inline NcclComm handle_of(CommHandle comm) {
  const std::lock_guard lock(all_handles().mutex);
  all_handles().list.push_back(std::make_unique<CommHandle>(std::move(comm)));
  return reinterpret_cast<NcclComm>(all_handles().list.back().get());
}
inline CommHandle comm_of(NcclComm handle) {
  const std::lock_guard lock(all_handles().mutex);
  CommHandle comm = *reinterpret_cast<CommHandle*>(handle);
  if (!comm) rule_broken("a communicator is used after its end");
  return comm;
}
inline void drop(NcclComm handle) {
  const std::lock_guard lock(all_handles().mutex);
  reinterpret_cast<CommHandle*>(handle)->reset();
}

// Of fake_nccl.cc: one check whether all ranks have come, in whatever the result of
// ncclCommGetAsyncError would be.
int join(Comm& comm);

// Of fake_nccl_shrink.cc: of a communicator that is revoked.
int progress_of_shrink(Comm& comm);

inline bool is_window(Comm& comm, const void* address) {
  const std::lock_guard lock(comm.mutex);
  return std::any_of(comm.windows.begin(), comm.windows.end(), [&](const auto& window) {
    const auto* begin = static_cast<const char*>(window.first);
    return begin <= address && address < begin + window.second;
  });
}

inline bool in_progress(const Comm& comm) {
  return comm.polls > 0 || comm.registering.load() || comm.connecting.load();
}

// What all ranks do must be the same. False: it is not, or the communicator was aborted.
inline bool agree(Comm& comm, const FakeSignature& what) {
  comm.wire->signatures[comm.rank] = what;
  if (!comm.barrier()) return false;
  bool same = true;
  for (int r = 0; r < comm.size; ++r) same = same && comm.wire->signatures[r] == what;
  return same;
}

}  // namespace ddprun::test
