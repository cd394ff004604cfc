#include "launcher/ctl/ras_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/text/display.h"

namespace ddprun::launcher {
namespace {

using nlohmann::json;

int whole(const json& object, const char* name) {
  const json& value = object.at(name);
  const auto wide = value.is_number_integer() ? value.get<std::int64_t>() : INT64_MAX;
  if (wide != static_cast<int>(wide)) {
    throw json::other_error::create(501, std::string(name) + " is no whole number", &value);
  }
  return static_cast<int>(wide);
}

RasProcess process_from(const json& object) {
  return {.rank = whole(object, "rank"),
          .host = object.at("host").get<std::string>(),
          .pid = whole(object, "pid"),
          .gpu = whole(object, "nvml_dev")};
}

RasRank rank_from(const json& object) {
  const json& status = object.at("status");
  RasRank rank{.process = process_from(object),
               .init_state = whole(status, "init_state"),
               .async_error = whole(status, "async_error"),
               .finalizing = status.at("finalize_called").get<bool>(),
               .destroying = status.at("destroy_flag").get<bool>(),
               .aborting = status.at("abort_flag").get<bool>(),
               .counts = {}};
  for (const auto& [operation, count] : object.at("collective_counts").items()) {
    if (!count.is_number_unsigned()) throw json::other_error::create(501, "no count", &count);
    rank.counts[operation] = count.get<std::uint64_t>();
  }
  return rank;
}

RasCommunicator communicator_from(const json& object) {
  RasCommunicator communicator{.hash = object.at("hash").get<std::string>(),
                               .size = whole(object, "size"),
                               .ranks = {},
                               .missing = {}};
  for (const json& rank : object.at("ranks").get_ref<const json::array_t&>()) {
    communicator.ranks.push_back(rank_from(rank));
  }
  for (const json& rank : object.at("missing_ranks").get_ref<const json::array_t&>()) {
    const json& status = rank.at("status");
    communicator.missing.push_back({.process = process_from(rank),
                                    .unresponsive = status.at("unresponsive").get<bool>(),
                                    .dead = status.at("considered_dead").get<bool>()});
  }
  return communicator;
}

bool is_space(char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; }

}  // namespace

std::string repaired(std::string_view text) {
  constexpr std::string_view kName = "\"nvml_dev\":", kNext = "\"status\"";
  std::string out;
  for (std::size_t at = text.find(kName); at != text.npos; at = text.find(kName)) {
    std::size_t end = at + kName.size();
    while (end < text.size() &&
           (text[end] == ' ' || text[end] == '-' || (text[end] >= '0' && text[end] <= '9'))) {
      ++end;
    }
    std::size_t next = end;
    while (next < text.size() && is_space(text[next])) ++next;
    out += text.substr(0, end);
    if (text.substr(next).starts_with(kNext)) out += ',';
    text.remove_prefix(end);
  }
  return out += text;
}

Result<RasReport> decode_ras(std::string_view text) {
  const json object = json::parse(repaired(text), nullptr, /*allow_exceptions=*/false);
  RasReport report;
  try {
    report.nccl_version = object.at("nccl_version").get<std::string>();
    report.timeouts = whole(object.at("ras"), "timeouts_count");
    for (const json& one : object.at("communicators").get_ref<const json::array_t&>()) {
      report.communicators.push_back(communicator_from(one));
    }
  } catch (const json::exception& bad) {
    return Failure{Errc::kBadMessage, std::string("no report of NCCL's RAS: ") + bad.what()};
  }
  return report;
}

// Part of ras_report.h: the text for people.

namespace {

constexpr std::size_t kLinesMax = 32;  // Per communicator.
constexpr int kSuccess = 0, kInProgress = 7;

std::string process_text(const RasProcess& process) {
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
    lines.push_back(process_text(missing.process) + " " + why);
  }
}

// Lists ranks with different progress. They are not queried at the same moment, so a difference of
// one operation means little; the same difference in a later query is significant.
void add_counts(const RasCommunicator& communicator, std::vector<std::string>& lines) {
  std::map<std::string, std::map<std::uint64_t, std::vector<int>>> seen;
  for (const RasRank& rank : communicator.ranks) {
    for (const auto& [operation, count] : rank.counts) {
      seen[operation][count].push_back(rank.process.rank);
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
    const auto add = [&](const std::string& what) { text += (text.empty() ? " " : ", ") + what; };
    if (rank.init_state == kInProgress) add("is still joining");
    if (rank.init_state != kSuccess && rank.init_state != kInProgress) {
      add("has not joined: " + error_text(rank.init_state));
    }
    if (rank.async_error != kSuccess && rank.async_error != kInProgress) {
      add("has " + error_text(rank.async_error));
    }
    if (rank.aborting) add("aborts");
    if (rank.finalizing || rank.destroying) add("leaves");
    if (!text.empty()) lines.push_back(process_text(rank.process) + text);
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
