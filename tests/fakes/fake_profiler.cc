#include "tests/fakes/fake_profiler.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>

#include "tests/fakes/fake_comm.h"
#include "worker_sdk/nccl_profiler/nccl_profiler_abi.h"

namespace ddprun::test {
namespace {

using namespace worker_sdk;

constexpr int kChannels = 2;

const char* type_name(int type) {
  static constexpr const char* kNames[] = {
      "ncclInt8",   "ncclUint8",   "ncclInt32",   "ncclUint32",  "ncclInt64",
      "ncclUint64", "ncclFloat16", "ncclFloat32", "ncclFloat64", "ncclBfloat16"};
  return kNames[type];
}

// Not the host's clock: a day and a half ahead of it.
std::uint64_t gpu_time() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(now + std::chrono::hours(36)).count());
}

// Versions before 2.28 know the interface's version 4 only, which has another order of arguments
// and a smaller type of event.
struct Plugin {
  const ProfilerV4* v4 = nullptr;
  const ProfilerV5* v5 = nullptr;

  Plugin() {
    const char* name = std::getenv("NCCL_PROFILER_PLUGIN");
    void* library = name && *name ? ::dlopen(name, RTLD_NOW | RTLD_LOCAL) : nullptr;
    if (!library) return;
    if (number("version", 22809) >= 22800) {
      v5 = static_cast<const ProfilerV5*>(::dlsym(library, "ncclProfiler_v5"));
    } else {
      v4 = static_cast<const ProfilerV4*>(::dlsym(library, "ncclProfiler_v4"));
    }
  }
  template <class What>
  void with(const What& what) const {
    if (v5) what(v5->calls, ProfilerEvent<std::uint64_t>{});
    if (v4) what(v4->calls, ProfilerEvent<std::uint8_t>{});
  }
};

const Plugin& plugin() {
  static const Plugin* one = new Plugin;
  return *one;
}

template <class Event>
void describe(Event& event, const FakeOperation& operation) {
  if (operation.message) {
    event.type = kProfileMessage;
    event.message = {.function = operation.function,
                     .buffer = nullptr,
                     .datatype = type_name(operation.type),
                     .count = operation.count,
                     .peer = 0,
                     .channels = kChannels};
    return;
  }
  event.type = kProfileCollective;
  event.collective = {.sequence = 7,
                      .function = operation.function,
                      .in = nullptr,
                      .out = nullptr,
                      .count = operation.count,
                      .root = 0,
                      .datatype = type_name(operation.type),
                      .channels = kChannels,
                      .warps = 16,
                      .algorithm = "RING",
                      .protocol = "SIMPLE"};
}

}  // namespace

void* profile_communicator(const std::string& name, int ranks, int rank) {
  void* context = nullptr;
  int wanted = 0;
  const std::uint64_t id = std::hash<std::string>()(name);
  if (plugin().v5) plugin().v5->init(&context, id, &wanted, name.c_str(), 1, ranks, rank, nullptr);
  if (plugin().v4) plugin().v4->init(&context, &wanted, name.c_str(), id, 1, ranks, rank, nullptr);
  return (wanted & kProfileChannel) ? context : nullptr;
}

void end_profile(void* context) {
  if (!context) return;
  plugin().with([&](const auto& calls, auto) { calls.finalize(context); });
}

ProfiledKernel::ProfiledKernel(void* context, int rank,
                               const std::vector<FakeOperation>& operations)
    : context_(context) {
  if (!context) return;
  for (const FakeOperation& operation : operations) {
    reported_.push_back({.event = nullptr, .has_kernel = !operation.on_window, .channels = {}});
    plugin().with([&](const auto& calls, auto event) {
      event.rank = rank;
      describe(event, operation);
      calls.start(context_, &reported_.back().event, &event);
    });
  }
}

void ProfiledKernel::enqueued() {
  for (const Reported& reported : reported_) {
    plugin().with([&](const auto& calls, auto) {
      if (reported.event) calls.stop(reported.event);
    });
  }
}

void ProfiledKernel::begins() {
  for (Reported& reported : reported_) {
    for (int c = 0; c < kChannels && reported.has_kernel; ++c) {
      plugin().with([&](const auto& calls, auto event) {
        event.type = kProfileChannel;
        event.parent = reported.event;
        event.channel = {static_cast<std::uint8_t>(c), gpu_time()};
        reported.channels.push_back(nullptr);
        calls.start(context_, &reported.channels.back(), &event);
      });
    }
  }
}

void ProfiledKernel::ends() {
  for (const Reported& reported : reported_) {
    for (void* const channel : reported.channels) {
      plugin().with([&](const auto& calls, auto) {
        ProfilerState state{};
        state.channel.gpu_time = gpu_time();
        if (!channel) return;
        calls.record(channel, kChannelStopped, &state);
        calls.stop(channel);
      });
    }
  }
}

}  // namespace ddprun::test
