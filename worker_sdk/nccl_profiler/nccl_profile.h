#pragma once
// What NCCL's kernels did in this process, by the GPU's clock: counts and times per kind of
// collective, and the last ones one by one. Pure. Fed by nccl_profiler.cc, shown by
// nccl_profile.cc.
//
//   start ──► the kernel begins and ends in each channel ──► timed
//     └─────► stop: it is enqueued; before, between or after those
//
// A collective took from the begin of its first channel to the end of its last. NCCL reports no
// channels of kernels on symmetric windows.

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <tuple>
#include <vector>

namespace ddprun::worker_sdk {

// A call, in NCCL's words.
struct NcclCall {
  std::string function;   // "AllReduce".
  std::string datatype;   // "float32".
  std::string algorithm;  // "RING"; empty for messages.
  std::string protocol;   // "SIMPLE"; empty for messages.
  std::uint64_t count = 0;
  int channels = 0;
  auto operator<=>(const NcclCall&) const = default;
};

class NcclProfile {
 public:
  // Names a collective, or one channel of it, until it is done. 0: none.
  using Event = std::uint64_t;

  struct Communicator {
    std::string name;
    std::uint64_t id = 0;  // The same on all its ranks.
    int nodes = 0, ranks = 0, rank = 0;
  };
  struct Row {  // One kind of call.
    std::size_t communicator = 0;
    NcclCall call;
    std::int64_t calls = 0;
    std::int64_t timed = 0;                   // Of these: with times.
    std::int64_t unfinished = 0;              // Of these: a kernel began, but did not end.
    std::uint64_t total_ns = 0;               // Sum of all timed ones.
    std::deque<std::uint64_t> times_ns = {};  // Of the last kTimes timed ones.
  };
  struct Span {  // One timed call.
    std::size_t row = 0;
    std::uint64_t sequence = 0;
    std::uint64_t begin_ns = 0, end_ns = 0;  // GPU.
  };

  static constexpr std::size_t kOpen = 1024;   // Calls under way; an older one is given up.
  static constexpr std::size_t kRows = 512;    // More kinds of calls are only counted.
  static constexpr std::size_t kTimes = 512;   // A row.
  static constexpr std::size_t kSpans = 2048;  // Over all rows.

  std::size_t open(Communicator communicator);
  Event start(std::size_t communicator, const NcclCall& call, std::uint64_t sequence);
  void stop(Event event);  // A call: it is enqueued.
  // 0 if the call is no longer known. Channels count from 0.
  Event start_channel(Event call, int channel, std::uint64_t gpu_ns);
  // `host_ns`: the current time of a clock of the host. Its offset to the GPU's clock is taken from
  // the call that NCCL reported with the least delay.
  void stop_channel(Event channel, std::uint64_t gpu_ns, std::int64_t host_ns);
  void close(std::size_t communicator);  // Its open calls end without further reports.

  const std::vector<Communicator>& communicators() const { return communicators_; }
  const std::vector<Row>& rows() const { return rows_; }
  const std::deque<Span>& spans() const { return spans_; }
  std::int64_t not_listed() const { return not_listed_; }  // Calls beyond kRows.
  // Converts to the host's clock.
  std::int64_t host_ns(std::uint64_t gpu_ns) const {
    return static_cast<std::int64_t>(gpu_ns) + (spans_.empty() ? 0 : lead_ns_);
  }

 private:
  struct Open {
    std::uint64_t number = 0;  // Counts all calls, from 1; 0: not in use.
    std::size_t row = 0;
    std::uint64_t sequence = 0;
    int begun = 0, ended = 0;
    bool enqueued = false;
    std::uint64_t first_ns = 0, last_ns = 0;
  };
  Open* find(Event event);
  void settle(Open& open);  // Gives it up, or counts it, and makes room.

  std::vector<Communicator> communicators_;
  std::vector<Row> rows_;
  std::map<std::pair<std::size_t, NcclCall>, std::size_t> row_of_;
  std::vector<Open> open_ = std::vector<Open>(kOpen);
  std::uint64_t calls_ = 0;
  std::int64_t not_listed_ = 0;
  std::deque<Span> spans_;
  std::int64_t lead_ns_ = std::numeric_limits<std::int64_t>::max();  // Host's - GPU's.
};

// Durations of a row's last timed calls; all 0 if there are none.
struct NcclTimes {
  std::uint64_t least_ns = 0, p50_ns = 0, p95_ns = 0;
};
NcclTimes times_of(const NcclProfile::Row& row);

// Bytes as nccl-tests counts them: of the whole array. 0 for a type that is not known.
std::uint64_t bytes_of(const NcclCall& call, int ranks);

// bytes / time * the part of it that must cross the slowest link, in 1e9 bytes/s, as in nccl-tests
// (doc/PERFORMANCE.md there). The time includes what a rank waited for later ones.
double busbw(const NcclCall& call, int ranks, std::uint64_t took_ns);

// An NcclProfile as a table for people, and as JSON for programs and trace viewers. Pure. Used by
// nccl_profiler.cc.
struct ProfiledRank {
  int rank = 0;
  std::string host;
};

// Per communicator a headline and a row per kind of call, the longest in total first. Every line
// ends with a line break. Empty if nothing was called.
std::string profile_table(const NcclProfile& profile, const ProfiledRank& identity);

// One object that chrome://tracing and Perfetto show ("traceEvents": the last calls, on the host's
// wall clock), with the table's figures as "communicators".
std::string profile_json(const NcclProfile& profile, const ProfiledRank& identity);

}  // namespace ddprun::worker_sdk
