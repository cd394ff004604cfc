#include "agent/workers/fork_messages.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>

#include "common/archive/packed.h"
#include "common/checksum.h"
#include "common/text/display.h"

namespace ddprun::agent {
namespace {

constexpr std::array<std::string_view, 7> kNamesOfRanks = {
    "RANK",        "LOCAL_RANK",  "WORLD_SIZE", "LOCAL_WORLD_SIZE",
    "MASTER_ADDR", "MASTER_PORT", "NCCL_HOSTID"};
constexpr std::array<std::string_view, 5> kPrefixesOfRanks = {"GROUP_", "ROLE_", "TORCHELASTIC_",
                                                              "DDPRUN_", "NCCL_RAS_"};
constexpr std::size_t kTextMax = 400;  // Columns of a reason.
constexpr const char* kReply = "a reply of the fork server";
constexpr std::array<std::string_view, 9> kReplies = {
    "ready", "refused", "forked", "cold", "resumed", "unfit", "saved", "absent", "failed"};
// Of a login or a terminal, and the folder, which is compared by itself.
constexpr std::array<std::string_view, 12> kNamesOfSessions = {
    "_",       "SHLVL", "PWD", "OLDPWD",    "SSH_CLIENT",     "SSH_CONNECTION",
    "SSH_TTY", "TMUX",  "STY", "TMUX_PANE", "XDG_SESSION_ID", "WINDOWID"};

// Each field ends with a NUL.
using Form = archive::Ended<'\0'>;

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

void fields(auto& a, archive::Is<ForkRequest> auto& m) {
  a.constant("kind", "fork"), a("number", m.number), a("agent", m.agent), a("argv", m.argv);
  a.items("environment", m.environment);
}
template <class A>
void fields(A& a, archive::Is<ForkReply> auto& m) {
  using Kind = ForkReply::Kind;
  std::string kind;
  a("kind", kind);
  const auto at = std::ranges::find(kReplies, kind);
  if (at == kReplies.end()) throw archive::BadField{"kind"};
  m.kind = static_cast<Kind>(at - kReplies.begin());
  if (m.kind == Kind::kForked || m.kind == Kind::kCold) a("number", m.number);
  if (m.kind != Kind::kForked) return a("text", m.text);
  a("pid", m.pid);
  if (m.pid < 2) throw archive::BadField{"pid"};
}

Result<std::string> encode(const ForkRequest& request) {
  std::string packet = archive::packed<Form>(request);
  if (packet.size() <= kForkRequestMax) return packet;
  return Failure{Errc::kFrameTooLarge,
                 "its command and environment have " + std::to_string(packet.size()) +
                     " bytes, and a fork server takes " + std::to_string(kForkRequestMax)};
}

Result<ForkReply> decode_fork_reply(std::string_view packet) {
  if (packet.size() > kForkReplyMax) return archive::failure_of({"size"}, kReply);
  auto reply = archive::unpacked<Form, ForkReply>(packet, kReply);
  if (reply) reply->text = shown(reply->text);
  return reply;
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

std::size_t place_of_program(const std::vector<std::string>& argv) {
  if (argv[2] == "-m") return 3;
  return argv[2] == "-c" && argv.size() > 4 ? 4 : 2;
}

std::string kept_key(const std::vector<std::string>& argv,
                     const std::vector<std::string>& environment, const std::string& modules,
                     const std::string& folder) {
  std::string text;
  const auto add = [&text](std::string_view part) { text.append(part).push_back('\0'); };
  add(folder);
  add(modules);
  for (std::size_t i = 0; i <= place_of_program(argv); ++i) add(argv[i]);
  for (const auto& [name, value] : settings(environment)) {
    if (std::ranges::find(kNamesOfSessions, name) != kNamesOfSessions.end()) continue;
    add(name);
    add(value);
  }
  std::array<char, 24> sum{};
  const std::uint64_t hash = checksum(text.data(), text.size());
  std::snprintf(sum.data(), sum.size(), "%016llx", static_cast<unsigned long long>(hash));
  return sum.data();
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
