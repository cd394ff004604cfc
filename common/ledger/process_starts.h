#pragma once
// How long each part of the start of a worker's process took (docs/ledger.md): noted by
// agent/ledger for each process, summed up by rendezvous/ledger over the run. Pure.

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

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

}  // namespace ddprun
