#pragma once
// The daemon's /metrics: Prometheus' text format, what the daemon's process and loop cost, and the
// families themselves.

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/ledger/time_parts.h"
#include "common/time.h"
#include "rendezvous/coordinator/counters.h"
#include "rendezvous/run/status.h"

namespace ddprun::rendezvous {

// Prometheus' text format, version 0.0.4: families of samples, each with its help and its type.
// Decides nothing about which numbers there are; that is below.
using Labels = std::map<std::string, std::string>;

// Collects the samples of one answer. A family stands where its first sample was added.
class MetricsText {
 public:
  enum class Type {
    kGauge,      // Goes up and down.
    kCounter,    // Only goes up.
    kHistogram,  // Counts of what is at most so large, and their sum.
  };

  struct Family {
    std::string name;
    std::string help;
    Type type = Type::kGauge;
  };

  void add(const Family& family, const Labels& labels, double value);
  // counts[i] were at most bounds[i]; the last of `counts`, beyond the bounds, were larger still.
  void add_histogram(const Family& family, std::span<const double> bounds,
                     std::span<const std::uint64_t> counts, double sum);

  std::string text() const;

 private:
  std::string& samples_of(const Family& family);

  std::map<std::string, std::size_t> places_;                  // By family.
  std::vector<std::pair<std::string, std::string>> families_;  // What precedes samples; samples.
};

// What this process uses of the machine, for the metrics.
struct ProcessFacts {
  double cpu_seconds = 0;
  std::uint64_t resident_bytes = 0;
  std::uint64_t open_descriptors = 0;
  std::uint64_t descriptors_max = 0;
};

ProcessFacts read_process_facts();

// Posts to the loop now and then and notes how late it runs: the daemon's answer to "is it
// overloaded". What must only happen while the loop turns, such as feeding a watchdog, happens on
// its beat.
struct LagCounts {
  static constexpr std::array<double, 6> kBoundsSeconds = {0.001, 0.005, 0.025, 0.1, 0.5, 2.5};
  // How many turns came at most so late; the last are those that came later still.
  std::array<std::uint64_t, kBoundsSeconds.size() + 1> turns{};
  double sum_seconds = 0;

  void add(Duration lag);
};

class LoopProbe {
 public:
  // Beats from the next turn of the loop on, every `interval`.
  LoopProbe(boost::asio::io_context& io, Milliseconds interval, std::function<void()> on_beat);

  const LagCounts& counts() const { return counts_; }
  Duration last_lag() const { return last_lag_; }

 private:
  void wait();

  boost::asio::steady_timer timer_;
  const Milliseconds interval_;
  const std::function<void()> on_beat_;
  LagCounts counts_;
  Duration last_lag_{0};
};

struct Measurement {
  DaemonStatus status;
  Counters counters;
  std::map<std::string, SyncTotals> sync;       // By run id.
  std::map<std::string, LedgerTotals> ledgers;  // By run id.
  RefusalCounts refused;  // By the listener, the links and the coordinator together.
  std::map<std::string, MemoryUse> memory;  // By run id: all folders, and the oldest copy.
  // By run id and rank, of elastic jobs.
  std::map<std::string, std::map<int, std::uint64_t>> shards;
  std::size_t connections = 0;
  std::size_t handshakes = 0;
  std::size_t http_connections = 0;
  std::size_t relayed_streams = 0;
  std::uint64_t relayed_bytes = 0;
  bool has_journal = false;
  LagCounts lag;
  ProcessFacts process;
};

std::string metrics_text(const Measurement& measured);

}  // namespace ddprun::rendezvous
