#pragma once
// Which workers are alive but stuck, by what they report of their progress. Pure: called from time
// to time by ProgressMonitor, which passes in what it read and when.
//
// How long a phase may take comes from its own history: `factor` times the longest that any worker
// of this node has needed for it, but at least `floor`; `first` if none has ended it yet, because
// the first step, the first evaluation and compilations take longer than all that follows; `early`
// while there is hardly any history, or `factor` times what the first ones took as seen from here,
// because workers do not report that. A phase that took longer than its limit and ended after all
// raises the limit but is not multiplied: limits must not learn a stall.
//
// A worker that waits in a collective is not stuck: the sibling that has not entered it may be, by
// its own limit. If no sibling is missing, the cause is on another node.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/time.h"

namespace ddprun::agent {

enum class OnStall {
  kOff,   // No pages, no checks.
  kLog,   // Reported once, with rank, phase and since when.
  kKill,  // And the worker ended, which then counts as its failure.
};

struct StallPolicy {
  OnStall on_stall = OnStall::kLog;
  Duration timeout = std::chrono::minutes(3);  // No stall is shorter.
};

// Where one worker is.
struct ProgressSample {
  bool reports = false;     // It does not, or not any more.
  std::uint64_t beats = 0;  // Changes with every progress.
  bool in_collective = false;
  std::string phase;         // "all_reduce", or the program's own name, or empty.
  std::uint64_t number = 0;  // Of the collective it is in, or was in last.
  std::uint64_t count = 0;   // How often it has ended this phase.
  Duration longest{};        // Of these.
};

struct StallOptions {
  Duration floor = std::chrono::minutes(3);
  Duration first = std::chrono::minutes(30);
  Duration early = std::chrono::minutes(6);
  int factor = 10;
  std::uint64_t history = 8;  // Fewer ends of a phase than that are hardly any history.
  Duration interval = std::chrono::seconds(15);  // Between two checks.
};

struct Stall {
  int local_rank = 0;
  Duration age{};
  std::string what;  // "has been in evaluate for 3 min; its longest so far was 2 s"
};

class StallWatch {
 public:
  explicit StallWatch(StallOptions options) : options_(options) {}

  struct Findings {
    std::vector<Stall> stuck;            // Each once, when it is found.
    std::vector<Stall> going_on;         // Were found stuck, and are not.
    std::optional<std::string> waiting;  // All of this node wait: the cause is elsewhere.
  };
  // By local rank. A pause of ours, or of the whole machine, counts against no worker.
  Findings check(const std::vector<ProgressSample>& samples, TimePoint now);

  // Of other workers: a new round.
  void start_over();

  Duration limit_of(const ProgressSample& sample) const;

 private:
  struct Worker {
    ProgressSample last;
    TimePoint since{};  // When it was first seen where it is.
    bool reported = false;
  };
  struct History {
    std::uint64_t count = 0;
    Duration longest{};  // Within the limit of its time.
    Duration outlier{};  // Beyond it, and it ended all the same.
    Duration seen{};     // The longest stay, within the limit of its time, give or take a check.
  };

  void learn(const std::vector<ProgressSample>& samples);
  void follow(const std::vector<ProgressSample>& samples, TimePoint now, Findings& findings);
  std::string key_of(const ProgressSample& sample) const;
  Duration age(std::size_t worker, TimePoint now) const { return now - workers_[worker].since; }
  bool is_late(std::size_t worker, TimePoint now) const;
  std::string what(std::size_t worker, TimePoint now) const;
  std::string awaited_by(std::size_t worker) const;
  bool sibling_missing(std::size_t worker, TimePoint now) const;
  void report(std::size_t worker, std::string what, TimePoint now, Findings& findings);

  StallOptions options_;
  std::vector<Worker> workers_;
  std::map<std::string, History> history_;
  std::optional<TimePoint> last_check_;
  bool reported_waiting_ = false;
};

}  // namespace ddprun::agent
