#include "rendezvous/daemon/metrics_page.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <ctime>
#include <fstream>
#include <map>
#include <utility>
#include <vector>

#include "common/assert.h"
#include "common/system/folder.h"

namespace ddprun::rendezvous {
namespace {

constexpr double kWholeNumbersMax = 9007199254740992;  // Beyond 2^53 a double skips some.

const char* name_of(MetricsText::Type type) {
  switch (type) {
    case MetricsText::Type::kGauge: return "gauge";
    case MetricsText::Type::kCounter: return "counter";
    case MetricsText::Type::kHistogram: return "histogram";
  }
  return "untyped";
}

template <class Number>
std::string digits(Number number) {
  char text[32];
  const auto end = std::to_chars(std::begin(text), std::end(text), number);
  DDPRUN_ASSERT(end.ec == std::errc());
  return {text, end.ptr};
}

// The shortest text that is read back as the same number; whole numbers without an exponent.
std::string number_text(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  if (std::fabs(value) <= kWholeNumbersMax && value == std::trunc(value)) {
    return digits(static_cast<std::int64_t>(value));
  }
  return digits(value);
}

std::string escaped(const std::string& text, bool quotes_too) {
  std::string result;
  for (const char c : text) {
    if (c == '\\' || (c == '"' && quotes_too)) result += '\\';
    if (c == '\n') {
      result += "\\n";
    } else {
      result += c;
    }
  }
  return result;
}

std::string sample(const std::string& name, const Labels& labels, double value) {
  std::string line = name;
  char before = '{';
  for (const auto& [label, content] : labels) {
    line += before + label + "=\"" + escaped(content, /*quotes_too=*/true) + "\"";
    before = ',';
  }
  return line + (labels.empty() ? " " : "} ") + number_text(value) + "\n";
}

}  // namespace

std::string& MetricsText::samples_of(const Family& family) {
  const auto [place, is_new] = places_.try_emplace(family.name, families_.size());
  if (is_new) {
    families_.emplace_back("# HELP " + family.name + " " +
                               escaped(family.help, /*quotes_too=*/false) + "\n# TYPE " +
                               family.name + " " + name_of(family.type) + "\n",
                           "");
  }
  return families_[place->second].second;
}

void MetricsText::add(const Family& family, const Labels& labels, double value) {
  DDPRUN_ASSERT(family.type != Type::kHistogram);
  samples_of(family) += sample(family.name, labels, value);
}

void MetricsText::add_histogram(const Family& family, std::span<const double> bounds,
                                std::span<const std::uint64_t> counts, double sum) {
  DDPRUN_ASSERT(family.type == Type::kHistogram);
  DDPRUN_ASSERT(counts.size() == bounds.size() + 1);
  std::string& samples = samples_of(family);
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    seen += counts[i];
    const std::string bound = i < bounds.size() ? number_text(bounds[i]) : "+Inf";
    samples += sample(family.name + "_bucket", {{"le", bound}}, static_cast<double>(seen));
  }
  samples += sample(family.name + "_sum", {}, sum);
  samples += sample(family.name + "_count", {}, static_cast<double>(seen));
}

std::string MetricsText::text() const {
  std::string all;
  for (const auto& [heading, samples] : families_) all += heading + samples;
  return all;
}

ProcessFacts read_process_facts() {
  ProcessFacts facts;
  timespec used{};
  if (::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) == 0) {
    facts.cpu_seconds = static_cast<double>(used.tv_sec) + static_cast<double>(used.tv_nsec) * 1e-9;
  }
  std::uint64_t pages = 0, resident_pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident_pages;
  facts.resident_bytes = resident_pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::size_t open = names_in("/proc/self/fd").names.size();
  facts.open_descriptors = open > 0 ? open - 1 : 0;  // One is the folder that was being read.
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) facts.descriptors_max = limit.rlim_cur;
  return facts;
}

void LagCounts::add(Duration lag) {
  const double seconds = std::max(std::chrono::duration<double>(lag).count(), 0.0);
  const auto bound = std::lower_bound(kBoundsSeconds.begin(), kBoundsSeconds.end(), seconds);
  ++turns[static_cast<std::size_t>(bound - kBoundsSeconds.begin())];
  sum_seconds += seconds;
}

LoopProbe::LoopProbe(boost::asio::io_context& io, Milliseconds interval,
                     std::function<void()> on_beat)
    : timer_(io), interval_(interval), on_beat_(std::move(on_beat)) {
  wait();
}

void LoopProbe::wait() {
  timer_.expires_after(interval_);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (error) return;
    last_lag_ = std::chrono::steady_clock::now() - timer_.expiry();
    counts_.add(last_lag_);
    if (on_beat_) on_beat_();
    wait();
  });
}

namespace {

using Type = MetricsText::Type;

constexpr const char* kStates[] = {"gathering", "last call", "running", "closing", "ended"};
constexpr const char* kPhases[] = {"ready", "seated", "finished", "stopping", "stopped", "empty"};
constexpr const char* kLostBy[] = {"closed", "silent", "stuck"};
static_assert(std::size(kLostBy) == kLostBys);

class Writer {
 public:
  // A family to which samples are added.
  class Samples {
   public:
    Samples(MetricsText& text, MetricsText::Family family)
        : text_(text), family_(std::move(family)) {}
    void add(const Labels& labels, double value) { text_.add(family_, labels, value); }

   private:
    MetricsText& text_;
    const MetricsText::Family family_;
  };

  Samples gauges(std::string name, std::string help) {
    return {text_, {std::move(name), std::move(help), Type::kGauge}};
  }
  Samples counters(std::string name, std::string help) {
    return {text_, {std::move(name), std::move(help), Type::kCounter}};
  }
  void gauge(std::string name, std::string help, double value) {
    gauges(std::move(name), std::move(help)).add({}, value);
  }
  void counter(std::string name, std::string help, double value) {
    counters(std::move(name), std::move(help)).add({}, value);
  }
  void lag(const LagCounts& lag) {
    text_.add_histogram({"ddprun_loop_lag_seconds",
                         "How late the event loop handled its own timer.", Type::kHistogram},
                        lag.kBoundsSeconds, lag.turns, lag.sum_seconds);
  }
  std::string text() const { return text_.text(); }

 private:
  MetricsText text_;
};

double number(std::uint64_t count) { return static_cast<double>(count); }
double seconds(std::uint64_t ns) { return static_cast<double>(ns) / 1e9; }

void write_runs(Writer& out, const DaemonStatus& status) {
  std::map<std::string, int> runs, nodes;
  for (const char* state : kStates) runs[state] = 0;
  for (const char* phase : kPhases) nodes[phase] = 0;
  int workers = 0;
  for (const RunStatus& run : status.runs) {
    ++runs[run.state];
    workers += run.world_size;
    for (const NodeStatus& node : run.nodes) ++nodes[node.phase];
  }
  auto runs_by_state = out.gauges("ddprun_runs", "Runs by state.");
  for (const auto& [state, count] : runs) runs_by_state.add({{"state", state}}, count);
  auto nodes_by_phase = out.gauges("ddprun_nodes", "Nodes by phase.");
  for (const auto& [phase, count] : nodes) nodes_by_phase.add({{"phase", phase}}, count);
  out.gauge("ddprun_workers", "Workers of running rounds.", workers);
}

void write_events(Writer& out, const Counters& counters) {
  auto messages = out.counters("ddprun_messages_total", "Messages from agents and operators.");
  for (std::size_t i = 0; i < kMessageKinds.size(); ++i) {
    messages.add({{"kind", kMessageKinds[i]}}, number(counters.messages[i]));
  }
  messages.add({{"kind", "command"}}, number(counters.commands));
  out.counter("ddprun_rounds_sealed_total", "Rounds that were started.",
              number(counters.rounds_sealed));
  out.counter("ddprun_restarts_total", "Restarts used up by failed workers.",
              number(counters.restarts));
  auto lost = out.counters("ddprun_nodes_lost_total", "Nodes lost while their run continued.");
  for (std::size_t i = 0; i < kLostBys; ++i) {
    lost.add({{"reason", kLostBy[i]}}, number(counters.nodes_lost[i]));
  }
  auto verdicts = out.counters("ddprun_verdicts_total", "Runs that ended, by outcome.");
  for (std::size_t i = 0; i < kVerdictKinds; ++i) {
    verdicts.add({{"kind", kind_name(static_cast<Verdict::Kind>(i))}},
                 number(counters.verdicts[i]));
  }
}

template <class Counts>
using Labelled = std::vector<std::pair<Labels, Counts>>;

template <class Counts>
void write_counts(Writer& out, const Labelled<Counts>& all, bool zeros) {
  for (std::size_t i = 0; i < Counts::kSize; ++i) {
    const SyncCounter& row = Counts::kRows[i];
    const bool is_time = row.unit == SyncUnit::kNanoseconds;
    const auto write = [&](Writer::Samples family) {
      for (const auto& [owner, counts] : all) {
        const double value = is_time ? seconds(counts.values[i]) : number(counts.values[i]);
        if (value == 0 && !zeros) continue;
        Labels labels = owner;
        if (*row.phase != '\0') labels.emplace("phase", row.phase);
        family.add(labels, value);
      }
    };
    const std::string name = std::string("ddprun_sync_") + row.metric;
    if (row.is_exported() && row.is_rate()) write(out.gauges(name, row.help));
    if (row.is_exported() && !row.is_rate()) write(out.counters(name, row.help));
  }
}

void write_sync(Writer& out, const std::map<std::string, SyncTotals>& runs) {
  Labelled<SyncCounts> sums;
  Labelled<LateCounts> late;
  for (const auto& [run, totals] : runs) {
    sums.push_back({{{"run", run}}, totals.sums()});
    for (const auto& [rank, counts] : totals.late()) {
      late.push_back({{{"run", run}, {"rank", rank < 0 ? "other" : std::to_string(rank)}}, counts});
    }
  }
  write_counts(out, sums, /*zeros=*/true);
  write_counts(out, late, /*zeros=*/false);
}

// Gauges: work becomes lost work when a failure undoes it.
void write_ledgers(Writer& out, const std::map<std::string, LedgerTotals>& ledgers) {
  auto goodput = out.gauges("ddprun_goodput_ratio", "Kept steps, of all time of the run's ranks.");
  auto wall = out.gauges("ddprun_run_seconds", "Time since the start of the run's first node.");
  auto parts =
      out.gauges("ddprun_rank_seconds", "Where the time of the run's ranks went, by part.");
  auto changes = out.gauges("ddprun_run_changes",
                            "Rounds of the run that began with workers of the round before.");
  auto repeated =
      out.gauges("ddprun_run_steps_repeated", "Steps of the run that ran again in these rounds.");
  for (const auto& [run, ledger] : ledgers) {
    changes.add({{"run", run}}, ledger.changes);
    repeated.add({{"run", run}}, number(ledger.repeated));
    goodput.add({{"run", run}}, ledger.goodput());
    wall.add({{"run", run}}, std::chrono::duration<double>(ledger.wall).count());
    for (std::size_t i = 0; i < kTimeParts; ++i) {
      parts.add({{"run", run}, {"part", name_of(static_cast<TimePart>(i))}},
                std::chrono::duration<double>(ledger.parts.times[i]).count());
    }
  }
}

void write_memory(Writer& out, const std::map<std::string, MemoryUse>& memory) {
  if (memory.empty()) return;
  auto used = out.gauges("ddprun_memory_folder_bytes", "What the run's memory folders take.");
  for (const auto& [run, use] : memory) used.add({{"run", run}}, number(use.used));
  auto behind =
      out.gauges("ddprun_memory_copy_behind_seconds",
                 "How long the worst of the copies of these folders has lacked something.");
  for (const auto& [run, use] : memory) {
    if (!use.behind) continue;
    behind.add({{"run", run}}, std::chrono::duration<double>(*use.behind).count());
  }
}

void write_shards(Writer& out, const std::map<std::string, std::map<int, std::uint64_t>>& shards) {
  if (shards.empty()) return;
  auto family = out.gauges("ddprun_shards", "Shards of each rank's last step, of elastic jobs.");
  for (const auto& [run, ranks] : shards) {
    for (const auto& [rank, count] : ranks) {
      family.add({{"run", run}, {"rank", std::to_string(rank)}}, number(count));
    }
  }
}

void write_connections(Writer& out, const Measurement& measured) {
  out.gauge("ddprun_connections", "Control links of agents and operators.",
            number(measured.connections));
  out.gauge("ddprun_handshakes", "Unfinished handshakes.", number(measured.handshakes));
  out.gauge("ddprun_http_connections", "Connections to this page's port.",
            number(measured.http_connections));
  out.gauge("ddprun_relayed_streams", "Streams between nodes through this daemon.",
            number(measured.relayed_streams));
  out.counter("ddprun_relayed_bytes_total", "Bytes that such streams have carried.",
              number(measured.relayed_bytes));
  auto refused = out.counters("ddprun_connections_refused_total", "Refused connections.");
  for (std::size_t i = 0; i < kRefusals; ++i) {
    const auto reason = static_cast<Refusal>(i);
    refused.add({{"reason", name_of(reason)}}, number(measured.refused.of(reason)));
  }
}

void write_process(Writer& out, const ProcessFacts& process) {
  // The names that every Prometheus client library uses.
  out.counter("process_cpu_seconds_total", "Processor time used.", process.cpu_seconds);
  out.gauge("process_resident_memory_bytes", "Resident memory.", number(process.resident_bytes));
  out.gauge("process_open_fds", "Open descriptors.", number(process.open_descriptors));
  out.gauge("process_max_fds", "Limit on open descriptors.", number(process.descriptors_max));
}

}  // namespace

std::string metrics_text(const Measurement& measured) {
  Writer out;
  write_runs(out, measured.status);
  write_events(out, measured.counters);
  write_sync(out, measured.sync);
  write_ledgers(out, measured.ledgers);
  write_memory(out, measured.memory);
  write_shards(out, measured.shards);
  write_connections(out, measured);
  if (measured.has_journal) {
    out.counter("ddprun_journal_records_total", "Records written to the journal.",
                static_cast<double>(measured.counters.records));
    out.counter("ddprun_journal_bytes_total", "Bytes of those records.",
                static_cast<double>(measured.counters.record_bytes));
  }
  out.lag(measured.lag);
  write_process(out, measured.process);
  return out.text();
}

}  // namespace ddprun::rendezvous
