// The library libddprun-nccl-profiler.so, which NCCL loads into any program on it, PyTorch's too,
// if NCCL_PROFILER_PLUGIN names it; ddprun does that for its workers if DDPRUN_NCCL_PROFILE is set.
// Its value selects the output: "1": rank 0 prints a table at the end; a folder: every rank also
// leaves nccl.rankN.json there.
//
// NCCL's calls have a handle but no communicator, so there is one profile per process. It is never
// destroyed, for NCCL's threads may still call while the process ends.

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <mutex>

#include "common/system/own_process.h"
#include "worker_sdk/base/locality.h"
#include "worker_sdk/gpu/gpu_abi.h"
#include "worker_sdk/nccl_profiler/nccl_profile.h"
#include "worker_sdk/nccl_profiler/nccl_profiler_abi.h"
#include "worker_sdk/timer/run_summary.h"

namespace ddprun::worker_sdk {
namespace {

class Profiler {
 public:
  bool wanted() const { return wanted_; }

  std::size_t open(const NcclProfile::Communicator& communicator) {
    const std::lock_guard lock(mutex_);
    if (profile_.communicators().empty()) begin(communicator.rank);
    return profile_.open(communicator);
  }
  void close(std::size_t communicator) {
    const std::lock_guard lock(mutex_);
    profile_.close(communicator);
    written_ = false;
    write();
  }
  template <class What>
  auto with(const What& what) {
    const std::lock_guard lock(mutex_);
    written_ = false;
    return what(profile_);
  }
  void end() {
    if (!wanted_ || ::getpid() != pid_) return;  // Not in a forked child.
    const std::lock_guard lock(mutex_);
    write();
    if (identity_.rank == 0) std::fputs(profile_table(profile_, identity_).c_str(), stderr);
  }

 private:
  void begin(int rank) {
    if (identity_.rank < 0) identity_.rank = rank;  // If there is no launcher.
    // Warn now, not after hours.
    if (!folder_.empty() && ::access(folder_.c_str(), W_OK | X_OK) != 0) complain(folder_ + "/");
  }
  void write() {
    if (folder_.empty() || profile_.rows().empty() || written_) return;
    written_ = true;
    const std::string path = folder_ + "/nccl.rank" + std::to_string(identity_.rank) + ".json";
    if (!write_whole(path, profile_json(profile_, identity_))) complain(path);
  }
  void complain(const std::string& path) const {
    std::fprintf(stderr, "ddprun: warning: rank %d on %s cannot write %s: %s\n", identity_.rank,
                 identity_.host.c_str(), path.c_str(), std::strerror(errno));
  }
  static ProfiledRank this_rank() {
    const std::string rank = environment_variable("RANK"),
                      host = environment_variable("DDPRUN_HOST");
    return {rank.empty() ? -1 : std::atoi(rank.c_str()), host.empty() ? host_name() : host};
  }

  const std::string setting_ = environment_variable("DDPRUN_NCCL_PROFILE");
  const bool wanted_ = !setting_.empty() && setting_ != "0";
  const std::string folder_ = setting_ == "1" ? "" : setting_;
  const pid_t pid_ = ::getpid();
  std::mutex mutex_;
  NcclProfile profile_;
  ProfiledRank identity_ = this_rank();
  bool written_ = false;  // All events so far.
};

Profiler& profiler() {
  static Profiler* one = new Profiler;
  return *one;
}

[[gnu::destructor]] void at_exit() { profiler().end(); }

std::int64_t wall_clock_ns() {
  timespec now{};  // The wall clock only labels the trace.
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

std::string word(const char* text) { return text ? text : ""; }

// "ncclFloat32" -> "float32".
std::string type_name(const char* nccls) {
  std::string name = word(nccls);
  if (name.starts_with("nccl")) name.erase(0, 4);
  if (!name.empty() && name[0] >= 'A' && name[0] <= 'Z') name[0] += 'a' - 'A';
  return name;
}

// A communicator's number as a context that is not null, and an event as a handle.
void* context_of(std::size_t communicator) { return reinterpret_cast<void*>(communicator + 1); }
std::size_t communicator_of(void* context) { return reinterpret_cast<std::size_t>(context) - 1; }
void* handle_of(NcclProfile::Event event) { return reinterpret_cast<void*>(event); }
NcclProfile::Event event_of(void* handle) { return reinterpret_cast<NcclProfile::Event>(handle); }

int init(void** context, int* wanted, const char* name, std::uint64_t id, int nodes, int ranks,
         int rank) {
  *wanted = 0;
  *context = nullptr;
  if (!profiler().wanted()) return kNcclSuccess;
  *context = context_of(profiler().open({word(name), id, nodes, ranks, rank}));
  *wanted = kProfileCollective | kProfileMessage | kProfileChannel;
  return kNcclSuccess;
}

template <class Event>
NcclProfile::Event started(NcclProfile& profile, std::size_t communicator, const Event& event) {
  switch (event.type) {
    case kProfileCollective: {
      const ProfiledCollective& c = event.collective;
      return profile.start(communicator,
                           {word(c.function), type_name(c.datatype), word(c.algorithm),
                            word(c.protocol), c.count, c.channels},
                           c.sequence);
    }
    case kProfileMessage: {
      const ProfiledMessage& m = event.message;
      return profile.start(
          communicator, {word(m.function), type_name(m.datatype), "", "", m.count, m.channels}, 0);
    }
    case kProfileChannel:
      return profile.start_channel(event_of(event.parent), event.channel.channel,
                                   event.channel.gpu_time);
    default: return 0;
  }
}

template <class Event>
int start(void* context, void** handle, Event* event) {
  *handle = nullptr;
  if (!context) return kNcclSuccess;
  *handle = handle_of(profiler().with(
      [&](NcclProfile& profile) { return started(profile, communicator_of(context), *event); }));
  return kNcclSuccess;
}

int stop(void* handle) {
  profiler().with([&](NcclProfile& profile) { profile.stop(event_of(handle)); });
  return kNcclSuccess;
}

int record(void* handle, int state, ProfilerState* arguments) {
  if (state != kChannelStopped || !arguments) return kNcclSuccess;
  const std::int64_t now = wall_clock_ns();
  profiler().with([&](NcclProfile& profile) {
    profile.stop_channel(event_of(handle), arguments->channel.gpu_time, now);
  });
  return kNcclSuccess;
}

int finalize(void* context) {
  if (context) profiler().close(communicator_of(context));
  return kNcclSuccess;
}

int init_v4(void** context, int* wanted, const char* name, std::uint64_t id, int nodes, int ranks,
            int rank, void* /*log*/) {
  return init(context, wanted, name, id, nodes, ranks, rank);
}

int init_v5(void** context, std::uint64_t id, int* wanted, const char* name, int nodes, int ranks,
            int rank, void* /*log*/) {
  return init(context, wanted, name, id, nodes, ranks, rank);
}

}  // namespace
}  // namespace ddprun::worker_sdk

// NCCL looks these up by name, the later version first.
extern "C" {
using namespace ddprun::worker_sdk;
extern const ProfilerV5 ncclProfiler_v5;
extern const ProfilerV4 ncclProfiler_v4;
const ProfilerV5 ncclProfiler_v5 = {"ddprun", init_v5, {start, stop, record, finalize}};
const ProfilerV4 ncclProfiler_v4 = {"ddprun", init_v4, {start, stop, record, finalize}};
}
