#pragma once
// The interface between NCCL and a profiler plugin, declared here so that neither is needed to
// build ours: versions 4 (NCCL 2.27) and 5 (2.28 and later) of the interface, as in
// ext-profiler/README.md and src/include/plugin/profiler/ of NCCL 2.28.9. Only the events that
// nccl_profiler.cc requests are declared; version 5 also sends those above them, unrequested.
//
// NCCL calls init for each communicator, from the thread that makes it; a collective's start and
// stop from the thread that enqueues it (stop: it is enqueued, not done), a channel's from its
// proxy thread, before or after that stop; finalize when the communicator ends. Strings passed by
// NCCL live as long as NCCL is loaded, except for the communicator's name. Pure.

#include <cstddef>
#include <cstdint>

namespace ddprun::worker_sdk {

constexpr int kProfileCollective = 1 << 1;
constexpr int kProfileMessage = 1 << 2;
constexpr int kProfileChannel = 1 << 6;  // One channel of a collective's kernel, with GPU times.
constexpr int kChannelStopped = 22;      // The state in which its end is reported.

struct ProfiledCollective {
  std::uint64_t sequence;
  const char* function;  // "AllReduce".
  const void* in;
  void* out;
  std::size_t count;  // In elements.
  int root;
  const char* datatype;  // "ncclFloat32".
  std::uint8_t channels;
  std::uint8_t warps;
  const char* algorithm;  // "RING".
  const char* protocol;   // "SIMPLE".
};

struct ProfiledMessage {  // ncclSend, ncclRecv.
  const char* function;
  void* buffer;
  const char* datatype;
  std::size_t count;
  int peer;
  std::uint8_t channels;
};

struct ProfiledChannel {
  std::uint8_t channel;
  std::uint64_t gpu_time;  // The GPU's globaltimer, ns.
};

// Type is uint8_t in version 4, and uint64_t in 5. Theirs may be larger.
template <class Type>
struct ProfilerEvent {
  Type type;
  void* parent;  // For a channel: the handle of its collective or message.
  int rank;
  union {
    ProfiledCollective collective;
    ProfiledMessage message;
    ProfiledChannel channel;
  };
};

union ProfilerState {
  struct {
    std::uint64_t gpu_time;
  } channel;
};

template <class Event>
struct ProfilerCalls {
  int (*start)(void* context, void** handle, Event* event);
  int (*stop)(void* handle);
  int (*record)(void* handle, int state, ProfilerState* arguments);
  int (*finalize)(void* context);
};

struct ProfilerV4 {
  const char* name;
  int (*init)(void** context, int* wanted, const char* communicator, std::uint64_t id, int nodes,
              int ranks, int rank, void* log);
  ProfilerCalls<ProfilerEvent<std::uint8_t>> calls;
};

struct ProfilerV5 {
  const char* name;
  int (*init)(void** context, std::uint64_t id, int* wanted, const char* communicator, int nodes,
              int ranks, int rank, void* log);
  ProfilerCalls<ProfilerEvent<std::uint64_t>> calls;
};

}  // namespace ddprun::worker_sdk
