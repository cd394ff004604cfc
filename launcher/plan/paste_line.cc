// paste_line() of plan.h: how this node's command line reads on another machine.

#include <algorithm>

#include "common/assert.h"
#include "common/text/words.h"
#include "launcher/plan/plan.h"

namespace ddprun::launcher {
namespace {

// What is true of this node only, or is said by the endpoint that the line names.
constexpr std::string_view kOfThisNode[] = {
    "--standalone",  "--node-rank",   "--rdzv-endpoint", "--rdzv-backend", "--local-addr",
    "--master-addr", "--master-port", "--local-nodes",   "--token-file",   "--dry-run"};

std::string without_is_host(std::string_view conf) {
  std::string kept;
  while (!conf.empty()) {
    const std::size_t comma = conf.find(',');
    const std::string_view pair = conf.substr(0, comma);
    conf.remove_prefix(comma == std::string_view::npos ? conf.size() : comma + 1);
    if (pair.starts_with("is_host=")) continue;
    if (!kept.empty()) kept += ',';
    kept += pair;
  }
  return kept;
}

std::string repeated(const GivenOption& option) {
  if (!option.value) return " " + option.flag;
  std::string value = *option.value;
  if (option.flag == "--rdzv-conf") value = without_is_host(value);
  return value.empty() ? "" : " " + option.flag + " " + shell_quote(value);
}

}  // namespace

std::string paste_line(const RendezvousPlan& plan, const Options& options, std::string_view token) {
  DDPRUN_ASSERT(plan.mode != RendezvousPlan::Mode::kStandalone && plan.endpoint.port);
  DDPRUN_ASSERT(plan.token != RendezvousPlan::Token::kMint || !token.empty());
  std::string line;
  if (plan.token == RendezvousPlan::Token::kMint) line = "DDPRUN_TOKEN=" + shell_quote(token) + " ";
  line += shell_quote(options.invoked_as);
  for (const GivenOption& option : options.given) {
    const auto end = std::end(kOfThisNode);
    if (std::find(std::begin(kOfThisNode), end, option.flag) == end) line += repeated(option);
  }
  line += " --rdzv-endpoint " + shell_quote(to_string(plan.endpoint));
  if (plan.store_port) line += " --master-port " + std::to_string(*plan.store_port);
  if (plan.token == RendezvousPlan::Token::kFile)
    line += " --token-file " + shell_quote(plan.token_file);
  line += " " + shell_quote(options.program);
  for (const std::string& argument : options.program_arguments) line += " " + shell_quote(argument);
  return line;
}

}  // namespace ddprun::launcher
