#include "agent/workers/fork_messages.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <limits>
#include <map>
#include <optional>

#include "common/text/display.h"

namespace ddprun::agent {
namespace {

constexpr std::array<std::string_view, 7> kNamesOfRanks = {
    "RANK",        "LOCAL_RANK",  "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "NCCL_HOSTID"};
constexpr std::array<std::string_view, 5> kPrefixesOfRanks = {"GROUP_", "ROLE_", "TORCHELASTIC_",
                                                              "DDPRUN_", "NCCL_RAS_"};
constexpr std::size_t kTextMax = 400;  // Columns of a reason.

Failure bad_reply(const std::string& why) {
  return {Errc::kBadMessage, "a reply of the fork server: " + why};
}

template <class Number>
std::optional<Number> number_from(std::string_view text) {
  Number value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const bool whole = error == std::errc() && end == text.data() + text.size() && !text.empty();
  return whole && value >= 0 ? std::optional(value) : std::nullopt;
}

std::vector<std::string_view> fields_of(std::string_view packet) {
  std::vector<std::string_view> fields;
  while (!packet.empty()) {
    const std::size_t end = packet.find('\0');
    if (end == std::string_view::npos) return {};
    fields.push_back(packet.substr(0, end));
    packet.remove_prefix(end + 1);
  }
  return fields;
}

std::string shown(std::string_view text) { return plain_line(first_columns(text, kTextMax)); }

std::map<std::string_view, std::string_view> settings(const std::vector<std::string>& environment) {
  std::map<std::string_view, std::string_view> settings;
  for (const std::string_view entry : environment) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = entry.substr(0, equals);
    if (!is_of_rank(name)) settings[name] = entry.substr(equals + 1);
  }
  return settings;
}

}  // namespace

Result<std::string> encode(const ForkRequest& request) {
  std::string packet;
  const auto add = [&packet](std::string_view field) { packet.append(field).push_back('\0'); };
  add("fork");
  add(std::to_string(request.number));
  add(std::to_string(request.agent));
  add(std::to_string(request.argv.size()));
  for (const std::string& argument : request.argv) add(argument);
  for (const std::string& variable : request.environment) add(variable);
  if (packet.size() <= kForkRequestMax) return packet;
  return Failure{Errc::kFrameTooLarge,
                 "its command and environment have " + std::to_string(packet.size()) +
                     " bytes, and a fork server takes " + std::to_string(kForkRequestMax)};
}

Result<ForkReply> decode_fork_reply(std::string_view packet) {
  using Kind = ForkReply::Kind;
  if (packet.size() > kForkReplyMax) return bad_reply("too long");
  const auto fields = fields_of(packet);
  if (fields.empty()) return bad_reply("no fields");
  if (fields[0] == "ready" || fields[0] == "refused") {
    if (fields.size() != 2) return bad_reply("the wrong number of fields");
    return ForkReply{.kind = fields[0] == "ready" ? Kind::kReady : Kind::kRefused,
                     .text = shown(fields[1])};
  }
  if (fields[0] != "forked" && fields[0] != "cold") return bad_reply("of an unknown kind");
  if (fields.size() != 3) return bad_reply("the wrong number of fields");
  const auto number = number_from<std::uint64_t>(fields[1]);
  if (!number) return bad_reply("without a number");
  if (fields[0] == "cold") return ForkReply{Kind::kCold, *number, 0, shown(fields[2])};
  const auto pid = number_from<int>(fields[2]);
  if (!pid || *pid < 2) return bad_reply("without a process");
  return ForkReply{Kind::kForked, *number, *pid, ""};
}

bool is_of_rank(std::string_view variable) {
  return std::ranges::find(kNamesOfRanks, variable) != kNamesOfRanks.end() ||
         std::ranges::any_of(kPrefixesOfRanks,
                             [&](std::string_view prefix) { return variable.starts_with(prefix); });
}

std::string variables_of_ranks() {
  std::string list;
  for (const std::string_view name : kNamesOfRanks) list.append(name).push_back(',');
  for (const std::string_view prefix : kPrefixesOfRanks) list.append(prefix).append("*,");
  list.pop_back();
  return list;
}

std::string environment_difference(const std::vector<std::string>& server,
                                   const std::vector<std::string>& worker) {
  const auto before = settings(server), now = settings(worker);
  const auto [ours, theirs] = std::mismatch(before.begin(), before.end(), now.begin(), now.end());
  if (ours == before.end() && theirs == now.end()) return "";
  const bool is_new = ours == before.end() || (theirs != now.end() && theirs->first < ours->first);
  return shown(is_new ? theirs->first : ours->first) + " is another one for this rank";
}

bool is_python_command(const std::vector<std::string>& argv) {
  if (argv.size() < 3 || argv[1] != "-u") return false;
  const std::string name = argv[0].substr(argv[0].rfind('/') + 1);
  if (!name.starts_with("python")) return false;
  const std::string& program = argv[2];
  if (program == "-m" || program == "-c") return argv.size() > 3;
  return !program.starts_with('-');
}

}  // namespace ddprun::agent
