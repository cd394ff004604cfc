#pragma once
// What is kept of a run that was started or has ended: by its launcher (launcher/history), and by a
// daemon (rendezvous/journal/run_history.h). Its JSON, for both. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/archive/archive.h"
#include "common/error.h"

namespace ddprun {

// The end of what a worker wrote to one of its streams.
struct RunTail {
  int rank = -1;
  std::string stream{};  // "stdout", "stderr".
  std::string text{};
  std::uint64_t end = 0;  // How many bytes the stream had in all; `text` is the end of them.
};

// What happened in a run, for people.
struct RunEventText {
  double at_s = 0;  // Since the run's start.
  bool is_trouble = false;
  std::string text{};
};

// One process of one life of one machine.
struct LauncherLife {
  int pid = 0;
  std::uint64_t started = 0;  // Clock ticks since the boot.
  std::string boot{};
  bool operator==(const LauncherLife&) const = default;
};

struct RunRecord {
  std::string run_id{};
  std::string command{};
  std::string host{};
  std::int64_t started = 0;  // Seconds since 1970.
  int max_restarts = 0;
  LauncherLife launcher{};
  std::string folder{};  // The run's temporary one, while it lives.

  // From here on once it has ended.
  std::optional<double> took_s{};
  int exit_code = 0;
  int world_size = 0;  // Of its last round; 0: it never began.
  int nodes = 0;
  int restarts = 0;
  std::string verdict{};  // JSON as in --error-file (docs/verdict.md); empty if there was none.
  std::vector<RunTail> tails{};
  std::vector<RunEventText> events{};  // The last, the oldest first. A daemon's records have them.
  std::string account{};  // JSON as in docs/ledger.md, in ASCII, for its report; empty: none.
};

enum class RunState {
  kRunning,
  kEnded,
  kVanished,  // Its launcher is gone and has written no end: killed, or the machine went down.
};

struct PastRun {
  std::string name;  // Of its record.
  RunRecord record;
  RunState state = RunState::kEnded;
};

std::string encode(const RunRecord& record);
// The same in one line of plain ASCII, which may be cut anywhere.
std::string encode_plain(const RunRecord& record);
Result<RunRecord> decode_record(std::string_view text);

// What a list of runs shows: without account, tails, events and victims.
RunRecord summary_of(RunRecord record);

// What an agent leaves at its end (agent/node/agent_ends.cc): a line of JSON with its workers'
// tails and, if it speaks for the run, all else that it knows, and then the account, if there is
// one. False: that is not such a text.
bool add_ending(RunRecord& record, std::string_view ending);

// For a verdict that no agent could give.
std::string plain_verdict(std::string_view kind, std::string_view run_id, int exit_code,
                          std::string_view text);

// Drops the account, then the beginnings of the longest tails, then the verdict, until `record`
// fits in so many bytes of JSON.
std::string encode_within(RunRecord record, std::size_t bytes_max);

// The fields of what runs leave, in the records of their launchers and in a daemon's status. See
// common/archive/archive.h.
void fields(auto& a, archive::Is<RunTail> auto& m) {
  a("rank", m.rank), a("stream", m.stream), a("text", m.text), a("end", m.end);
}
template <class A>
void fields(A& a, archive::Is<RunEventText> auto& m) {
  std::string level = m.is_trouble ? "warning" : "info";
  a("at_s", m.at_s), a("level", level), a("text", m.text);
  if constexpr (A::kReads) m.is_trouble = level == "warning";
}

}  // namespace ddprun
