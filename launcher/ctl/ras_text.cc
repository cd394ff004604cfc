// Of ras_report.h: what people read.

#include <algorithm>

#include "common/text/screen.h"
#include "launcher/ctl/ras_report.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kLinesMax = 32;  // Of one communicator.
constexpr int kSuccess = 0, kInProgress = 7;

std::string who(const RasProcess& process) {
  return "rank " + std::to_string(process.rank) + " (pid " + std::to_string(process.pid) + " on " +
         plain_line(process.host) + ", GPU " + std::to_string(process.gpu) + ")";
}

// "0-2, 7"; `ranks` rising.
std::string ranges(const std::vector<int>& ranks) {
  std::string text;
  for (std::size_t i = 0; i < ranks.size();) {
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) ++last;
    text += (text.empty() ? "" : ", ") + std::to_string(ranks[i]);
    if (last > i) text += "-" + std::to_string(ranks[last]);
    i = last + 1;
  }
  return text;
}

std::string error_text(int status) {
  static constexpr const char* kNames[] = {"",
                                           "a CUDA error",
                                           "a system error",
                                           "an internal error",
                                           "an invalid argument",
                                           "an invalid usage",
                                           "a remote process or the network failed"};
  const bool known = status > 0 && status < static_cast<int>(std::size(kNames));
  return "error " + std::to_string(status) + (known ? std::string(", ") + kNames[status] : "");
}

void add_missing(const RasCommunicator& communicator, std::vector<std::string>& lines) {
  for (const RasMissing& missing : communicator.missing) {
    const char* why = missing.dead           ? "is dead"
                      : missing.unresponsive ? "does not answer"
                                             : "is not in it, or no longer";
    lines.push_back(who(missing.who) + " " + why);
  }
}

// Ranks that are not equally far. They are not asked at one instant, so one operation more or less
// says little, the same again later says much.
void add_counts(const RasCommunicator& communicator, std::vector<std::string>& lines) {
  std::map<std::string, std::map<std::uint64_t, std::vector<int>>> seen;
  for (const RasRank& rank : communicator.ranks) {
    for (const auto& [operation, count] : rank.counts) {
      seen[operation][count].push_back(rank.who.rank);
    }
  }
  for (auto& [operation, by_count] : seen) {
    if (by_count.size() < 2) continue;
    std::string text = plain_line(operation) + " has been called";
    const char* separator = " ";
    for (auto& [count, ranks] : by_count) {
      std::sort(ranks.begin(), ranks.end());
      text += separator + std::to_string(count) + " times by rank" +
              (ranks.size() > 1 ? "s " : " ") + ranges(ranks);
      separator = "; ";
    }
    lines.push_back(std::move(text));
  }
}

void add_states(const RasCommunicator& communicator, std::vector<std::string>& lines) {
  for (const RasRank& rank : communicator.ranks) {
    std::string text;
    const auto say = [&](const std::string& what) { text += (text.empty() ? " " : ", ") + what; };
    if (rank.init_state == kInProgress) say("is still joining");
    if (rank.init_state != kSuccess && rank.init_state != kInProgress) {
      say("has not joined: " + error_text(rank.init_state));
    }
    if (rank.async_error != kSuccess && rank.async_error != kInProgress) {
      say("has " + error_text(rank.async_error));
    }
    if (rank.aborting) say("aborts");
    if (rank.finalizing || rank.destroying) say("leaves");
    if (!text.empty()) lines.push_back(who(rank.who) + text);
  }
}

std::string communicator_text(const RasCommunicator& communicator) {
  std::vector<std::string> lines;
  add_missing(communicator, lines);
  add_counts(communicator, lines);
  add_states(communicator, lines);
  const std::size_t more = lines.size() > kLinesMax ? lines.size() - kLinesMax : 0;
  lines.resize(lines.size() - more);
  std::string text = "communicator " + plain_line(communicator.hash) + ": " +
                     std::to_string(communicator.ranks.size()) + " of " +
                     std::to_string(communicator.size) + " ranks answer" +
                     (lines.empty() ? ", all alike" : "") + "\n";
  for (const std::string& line : lines) text += "  " + line + "\n";
  if (more > 0) text += "  and " + std::to_string(more) + " more such lines (--json has all)\n";
  return text;
}

}  // namespace

std::string ras_text(const RasReport& report) {
  std::string text = "NCCL " + plain_line(report.nccl_version) + ", " +
                     std::to_string(report.communicators.size()) +
                     (report.communicators.size() == 1 ? " communicator" : " communicators");
  if (report.timeouts > 0) {
    text += "; RAS timed out waiting for " + std::to_string(report.timeouts) + " processes";
  }
  text += "\n";
  for (const RasCommunicator& one : report.communicators) text += communicator_text(one);
  return text;
}

}  // namespace ddprun::launcher
