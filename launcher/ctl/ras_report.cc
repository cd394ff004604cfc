#include "launcher/ctl/ras_report.h"

#include <nlohmann/json.hpp>

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
  RasRank rank{.who = process_from(object),
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
    communicator.missing.push_back({.who = process_from(rank),
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

}  // namespace ddprun::launcher
