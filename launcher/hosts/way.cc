#include "launcher/hosts/way.h"

#include <algorithm>
#include <filesystem>

#include "common/system/random_id.h"
#include "common/text/words.h"
#include "launcher/hosts/orders.h"
#include "launcher/options/hosts.h"

namespace ddprun::launcher {
namespace {

constexpr int kPortsFirst = 29'400, kPorts = 3'200;

// ssh's whole command line: the user's words, then what we ask for, the target, and what runs
// there.
std::vector<std::string> ssh_argv(const std::vector<std::string>& ssh, const std::string& target,
                                  const std::string& program) {
  // Of two values for one option ssh takes the first: the user's words win.
  std::vector<std::string> argv = ssh;
  for (const char* option :
       {"BatchMode=yes", "ConnectTimeout=10", "ServerAliveInterval=5", "ServerAliveCountMax=3"}) {
    argv.insert(argv.end(), {"-o", option});
  }
  const std::string flag(kControlFlag);
  const std::string script = "if test -x " + shell_quote(program) + "; then exec " +
                             shell_quote(program) + " " + flag + "; fi; exec ddprun " + flag;
  // Whatever shell the user has there, /bin/sh reads the rest.
  argv.insert(argv.end(), {"-T", "-x", "--", target, "exec /bin/sh -c " + shell_quote(script)});
  return argv;
}

}  // namespace

std::string own_program() { return std::filesystem::read_symlink("/proc/self/exe"); }

std::vector<std::string> way_to(const HostEntry& host, const std::vector<std::string>& ssh,
                                const MachineFacts& facts) {
  if (host.user.empty() && names_this_machine(host.name, facts)) return {};
  return ssh_argv(ssh, ssh_target(host), own_program());
}

std::vector<std::string> far_end_command(const HostEntry& host, const std::vector<std::string>& ssh,
                                         const MachineFacts& facts) {
  std::vector<std::string> argv = way_to(host, ssh, facts);
  if (argv.empty()) argv = {own_program(), std::string(kControlFlag)};
  return argv;
}

std::uint16_t random_meeting_port() {
  return static_cast<std::uint16_t>(kPortsFirst + std::stoi(random_hex(2), nullptr, 16) % kPorts);
}

std::optional<Failure> unreachable_names(const std::vector<HostEntry>& hosts) {
  const auto here = std::find_if(hosts.begin(), hosts.end(),
                                 [](const HostEntry& host) { return is_loopback(host.name); });
  const bool all = std::all_of(hosts.begin(), hosts.end(),
                               [](const HostEntry& host) { return is_loopback(host.name); });
  if (here == hosts.end() || all) return std::nullopt;
  return Failure{Errc::kBadOption, "--hosts: " + here->name +
                                       " means another machine on each of the others; give the "
                                       "name that they know it by"};
}

std::optional<Failure> missing_variable(const std::vector<std::string>& names,
                                        const Environment& environment) {
  for (const std::string& name : names) {
    if (environment.contains(name)) continue;
    return Failure{Errc::kBadOption, "--env: the variable " + name + " is not set"};
  }
  return std::nullopt;
}

}  // namespace ddprun::launcher
