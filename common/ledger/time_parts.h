#pragma once
// The classes into which the ledger divides the time of a place, which is a local rank of a node
// (docs/ledger.md). They are the parts of the report and of /metrics, and add up to all of it. And
// the parts of the start of a worker's process. Pure.

#include <array>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/time.h"

namespace ddprun {

// What the account of a run calls itself (rendezvous/ledger/account.h).
constexpr const char* kAccountSchema = "ddprun.report/1";
// Of all time: less is not worth a sentence.
constexpr double kWorthReporting = 0.005;

// How long each part of the start of a worker's process took (docs/ledger.md): noted by
// agent/ledger for each process, summed up by rendezvous/ledger over the run.

enum class StartPart {
  kSpawn,       // From the order to start until the agent has the process.
  kImports,     // From the beginning of the process until it begins to join its group.
  kRendezvous,  // Until it has met the others.
  kFirstStep,   // Until its first step begins.
};
constexpr std::size_t kStartParts = 4;
const char* name_of(StartPart part);   // "first_step": in JSON.
const char* label_of(StartPart part);  // "first step": for people.

struct ProcessStart {
  bool preloaded = false;  // A fork of a process that has imported the modules (--preload).
  std::int64_t spawn_us = 0;
  // How old the process was; 0: not known, or not yet.
  std::int64_t joining_us = 0, met_us = 0, first_step_us = 0;
  bool operator==(const ProcessStart&) const = default;

  // In microseconds; nothing: not known.
  std::optional<std::int64_t> operator[](StartPart part) const;
};

constexpr std::size_t kStartsMax = 8;  // Of a place; the latest are kept.

// "0,1200,2300000,2400000,0;1,...".
std::string to_text(const std::vector<ProcessStart>& starts);
// Nothing: that is not such a text, or has more than kStartsMax starts.
std::optional<std::vector<ProcessStart>> parse_process_starts(std::string_view text);

// Of all processes of a run, those that were started cold and preloaded ones apart.
struct StartTotals {
  struct Part {
    std::int64_t count = 0, sum_us = 0;
    bool operator==(const Part&) const = default;
  };
  struct Kind {
    std::int64_t processes = 0;
    std::array<Part, kStartParts> parts{};
    bool operator==(const Kind&) const = default;

    // Seconds; nothing: of no process known.
    std::optional<double> mean(StartPart part) const;
  };
  Kind cold, preloaded;
  bool operator==(const StartTotals&) const = default;

  void add(const ProcessStart& start);
};

std::string to_text(const StartTotals& totals);
std::optional<StartTotals> parse_start_totals(std::string_view text);

// Lines for --report: "starts of 4 processes, cold: spawn 3 ms, imports 2.31 s, ..."; those that
// are not known are left out.
std::vector<std::string> start_lines(const StartTotals& totals);

// How many shards of an elastic job each rank has, and what it has won that they follow the
// ranks' speed (docs/elastic.md): for the reports of a run. Summed up by rendezvous/ledger.
struct ShardTotals {
  std::int64_t ranks = 0;  // That have shards.
  std::int64_t fewest = 0, most = 0;
  std::int64_t slowest = 0;  // The lowest rank that has the fewest.
  std::int64_t won_us = 0;   // What the steps would have taken longer with an even division.
  bool operator==(const ShardTotals&) const = default;

  void add(int rank, std::uint64_t shards);
};

std::string to_text(const ShardTotals& totals);
std::optional<ShardTotals> parse_shard_totals(std::string_view text);

// "shards: 5 (rank 3) to 9 per rank; ..."; empty if there are none.
std::string shard_line(const ShardTotals& totals);

// New parts stand at the end: the position of a part is what agent and daemon send.
enum class TimePart {
  kRendezvous,  // Until all nodes of the first round are there.
  kStartup,     // From the start of a process in the first round to its first step.
  kOutside,     // Of kept steps: optimizer, data, anything between steps.
  kForward,     // Of kept steps.
  kBackward,    // Of kept steps.
  kTransfer,    // Of kept steps: exposed transfer of gradients.
  kWaiting,     // Of kept steps: until the last rank had come.
  kSteps,       // Of kept steps of which no more is known.
  kCheckpoint,  // Training stands still for a checkpoint.
  kLost,        // Work since the last checkpoint that a failure undid.
  kRestart,     // From a failure or a change of the membership to the next step.
  kSpare,       // A node in reserve.
  kGone,        // No process of the run is in this place.
  kUnknown,     // A process runs, and reports nothing.
  kEnd,         // From the last step of a process that ended well to its end.
};

constexpr std::size_t kTimeParts = static_cast<std::size_t>(TimePart::kEnd) + 1;

const char* name_of(TimePart part);   // "startup": in JSON and in labels.
const char* label_of(TimePart part);  // "start-up": for people.

// Kept steps: what goodput consists of.
bool is_kept(TimePart part);

struct TimeParts {
  using Time = std::chrono::microseconds;

  Time& operator[](TimePart part) { return times[static_cast<std::size_t>(part)]; }
  Time operator[](TimePart part) const { return times[static_cast<std::size_t>(part)]; }
  bool operator==(const TimeParts&) const = default;

  Time sum() const;
  Time kept() const;
  void add(const TimeParts& more);

  std::array<Time, kTimeParts> times{};
};

// "12,,3400": microseconds in the order of the parts, nothing for 0, no commas at the end.
std::string to_text(const TimeParts& parts);
// Nothing: that is not such a text, or claims more than kTimeMax of a part. Parts of a newer ddprun
// are added to kUnknown.
std::optional<TimeParts> parse_time_parts(std::string_view text);
constexpr TimeParts::Time kTimeMax = std::chrono::hours(24 * 3650);

// 0 of nothing.
double ratio(TimeParts::Time part, TimeParts::Time whole);
// 0 if `until` is earlier.
TimeParts::Time between(TimePoint from, TimePoint until);

// A sum over the places of a run.
struct LedgerTotals {
  int places = 0;
  TimeParts::Time wall{0};
  TimeParts parts{};
  int changes = 0;             // Rounds that began with workers of the one before.
  std::uint64_t repeated = 0;  // Steps that ran again in these.
  StartTotals starts{};
  ShardTotals shards{};
  bool operator==(const LedgerTotals&) const = default;

  TimeParts::Time in_run() const;     // All but that of spares and of places outside the run.
  double share(TimePart part) const;  // Of in_run(); 0 if that is nothing.
  double goodput() const;             // Kept steps, of in_run().
  bool has_goodput() const;           // A rank has reported steps, kept or lost.
};

// How a place's steps were divided over time, in at most kBinsMax bins that grow with the run: the
// picture of the report (docs/ledger.md). Pure. Filled by agent/ledger, drawn from by
// rendezvous/ledger.
constexpr std::size_t kBinParts = 4;
// What the bins divide; waiting is what is left of a bin.
inline constexpr std::array kBinPart = {TimePart::kOutside, TimePart::kForward, TimePart::kBackward,
                                        TimePart::kTransfer};

class TimeBins {
 public:
  using Time = TimeParts::Time;
  static constexpr std::size_t kBinsMax = 200;
  static constexpr Time kFirstWidth = std::chrono::milliseconds(50);

  // Steps took `more` between two times since the ledger began.
  void add(Time from, Time until, const TimeParts& more);

  Time width() const { return width_; }
  std::size_t size() const { return bins_.size(); }
  // The share of each part in a bin; nothing if no step was made.
  std::optional<std::array<double, kBinParts>> shares(std::size_t bin) const;
  // Of any stretch of time.
  std::optional<std::array<double, kBinParts>> shares(Time from, Time until) const;

 private:
  struct Bin {
    std::array<double, kBinParts> parts{};  // Microseconds.
    bool any = false;
  };
  friend std::string to_text(const TimeBins& bins);
  friend std::optional<TimeBins> parse_time_bins(std::string_view text);

  void halve();

  Time width_ = kFirstWidth;
  std::vector<Bin> bins_;
};

// A share in 63rds as one sign of the report's alphabet.
char share_sign(double share);
std::optional<double> share_of_sign(char sign);

// "50000:" and four signs per bin, or one "." if nothing is known.
std::string to_text(const TimeBins& bins);
std::optional<TimeBins> parse_time_bins(std::string_view text);

// Whole numbers from 0 to kTimeMax as text: "3,1200,0". For small records that travel in one
// field.
inline std::string number_list(std::span<const std::int64_t> numbers) {
  std::string text;
  for (const std::int64_t number : numbers) text += std::to_string(number) + ",";
  if (!text.empty()) text.pop_back();
  return text;
}

// Nothing: that is not such a text, or has not `count` numbers.
inline std::optional<std::vector<std::int64_t>> parse_number_list(std::string_view text,
                                                                  std::size_t count) {
  std::vector<std::int64_t> numbers;
  for (std::size_t i = 0; i < count; ++i) {
    std::int64_t number = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc{} || number < 0 || number > kTimeMax.count()) return std::nullopt;
    numbers.push_back(number);
    text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
    const bool is_last = i + 1 == count;
    if (is_last ? !text.empty() : !text.starts_with(',')) return std::nullopt;
    if (!is_last) text.remove_prefix(1);
  }
  return numbers;
}

}  // namespace ddprun
