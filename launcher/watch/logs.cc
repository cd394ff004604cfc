#include "launcher/watch/logs.h"

#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "common/system/standard_output.h"
#include "common/text/display.h"
#include "common/time.h"
#include "launcher/watch/history_text.h"
#include "launcher/watch/window_client.h"

namespace ddprun::launcher {
namespace {

using nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr int kFollowEveryMs = 250;
constexpr std::chrono::seconds kEndLimit{10};  // For a launcher to write the record of its end.

// Prints for a terminal without escape sequences except colours.
void print(const std::string& text, bool is_stderr) {
  if (text.empty()) return;
  if (is_stderr) std::fputs(without_escapes(text).c_str(), stderr);
  if (!is_stderr) write_output(without_escapes(text));
}

// The streams of a run's workers here, each with how much of it was printed.
class Reader {
 public:
  Reader(PastRun run, int rank) : run_(std::move(run)), rank_(rank) {}

  // Prints new output. False: no agent of the run answers.
  bool read() {
    bool answered = false;
    const auto question = [&](const std::string& path) {
      return json({{"ask", "tails"}, {"rank", rank_}, {"after", ends_[path]}}).dump();
    };
    const auto answers = query_windows(windows_of(run_), question);
    mute_ = mute_text(run_, answers);
    for (const AgentAnswer& answer : answers) {
      if (!answer.text) continue;
      const json reply = json::parse(*answer.text, nullptr, /*allow_exceptions=*/false);
      if (!reply.is_object() || !reply.contains("tails")) continue;
      answered = true;
      for (const json& tail : reply["tails"]) take(answer.path, tail);
    }
    return answered;
  }

  // A sentence about the agents that did not answer last time; empty if all present ones did.
  const std::string& mute() const { return mute_; }

  // Prints from the record of a run that has ended.
  void read_record(const RunRecord& record) {
    for (const RunTail& tail : record.tails) {
      if (rank_ >= 0 && tail.rank != rank_) continue;
      found_ = true;
      const std::uint64_t printed = printed_[{tail.rank, tail.stream == "stderr"}];
      const std::uint64_t news = tail.end - std::min(printed, tail.end);
      RunRecord one;
      one.tails = {tail};
      std::string& text = one.tails[0].text;
      if (news < text.size()) text.erase(0, text.size() - news);
      print(tails_text(one, -1, tail.stream == "stderr"), tail.stream == "stderr");
    }
  }

  bool found() const { return found_; }

 private:
  void take(const std::string& path, const json& tail) {
    const int rank = tail.value("rank", -1);
    const bool is_stderr = tail.value("stream", "") == "stderr";
    const std::string stream =
        std::to_string(tail.value("local_rank", 0)) + tail.value("stream", "");
    const auto end = tail.value("end", std::uint64_t{0});
    ends_[path][stream] = end;
    printed_[{rank, is_stderr}] = end;
    found_ = true;
    const auto missed = tail.value("missed", std::uint64_t{0});
    if (missed > 0) {
      print(
          "[" + std::to_string(rank) + "]: [" + std::to_string(missed) + " bytes went by unread]\n",
          is_stderr);
    }
    RunRecord one;
    one.tails = {
        {.rank = rank, .stream = tail.value("stream", ""), .text = tail.value("text", "")}};
    print(tails_text(one, -1, is_stderr), is_stderr);
  }

  const PastRun run_;
  const int rank_;
  std::map<std::string, std::map<std::string, std::uint64_t>> ends_;  // By agent and stream.
  std::map<std::pair<int, bool>, std::uint64_t> printed_;  // By rank, and whether it is stderr.
  bool found_ = false;
  std::string mute_;
};

std::optional<PastRun> run_of_record(const std::string& name) {
  for (PastRun& run : past_runs()) {
    if (run.name == name) return std::move(run);
  }
  return std::nullopt;
}

Result<void> follow(Reader& reader, const PastRun& run) {
  TimePoint until = Clock::now() + kEndLimit;
  while (output_errno == 0) {
    if (reader.read()) {
      ::poll(nullptr, 0, kFollowEveryMs);
      until = Clock::now() + kEndLimit;
      continue;
    }
    // If the agents are gone, their last output is in the record, as soon as the launcher has
    // written it. An agent that stands still, or has too many visitors, is queried again.
    const auto now = run_of_record(run.name);
    if (!now || now->state == RunState::kVanished) return {};
    if (now->state == RunState::kEnded) return reader.read_record(now->record), Result<void>();
    if (Clock::now() > until) {
      if (!reader.mute().empty()) return Failure{Errc::kPeerSilent, reader.mute()};
      return Failure{Errc::kPeerSilent, "run '" + cell_text(run.record.run_id) +
                                            "' is in progress, but its agents no longer answer"};
    }
    ::poll(nullptr, 0, kFollowEveryMs / 5);
  }
  return {};
}

}  // namespace

Result<PastRun> named_run(const std::string& word) {
  std::vector<PastRun> runs = past_runs();
  if (runs.empty()) {
    return Failure{Errc::kNotFound, "there are no records of your runs on this machine"};
  }
  if (word.empty()) return std::move(runs.front());
  const auto found = find_run(runs, word);
  if (found) return std::move(runs[*found]);
  return Failure{Errc::kNotFound, "no run '" + word + "' of yours is recorded on this machine; " +
                                      "ddprunctl history lists those that are"};
}

Result<void> print_logs(const LogsOptions& options) {
  auto run = named_run(options.run);
  if (!run) return run.error();
  Reader reader(*run, options.rank);
  const bool running = run->state == RunState::kRunning;
  if (running && options.follow) {
    if (const auto followed = follow(reader, *run); !followed) return followed.error();
  } else {
    const bool answered = running && reader.read();
    const auto now = run_of_record(run->name);  // The run may have ended a moment ago.
    if (now && !answered) reader.read_record(now->record);
    const bool goes_on = now && now->state == RunState::kRunning;
    if (goes_on && !reader.mute().empty()) return Failure{Errc::kPeerSilent, reader.mute()};
  }
  if (reader.found()) return {};
  const std::string subject =
      options.rank < 0 ? "workers" : "a worker of rank " + std::to_string(options.rank);
  return Failure{Errc::kNotFound,
                 "nothing is known here that " + subject + " of run '" +
                     cell_text(run->record.run_id) +
                     "' wrote; each machine has the output of its own workers only"};
}

}  // namespace ddprun::launcher
