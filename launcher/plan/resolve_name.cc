#include "launcher/plan/resolve_name.h"

#include <netdb.h>
#include <sys/socket.h>

#include <sstream>

#include "common/system/child_process.h"
#include "common/text/words.h"
#include "launcher/plan/plan.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kAnswerBytesMax = 65'536;
constexpr Milliseconds kEndLimit{2'000};  // After SIGKILL.

// One address per line.
std::string addresses_of(const std::string& name) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) return "";
  std::string text;
  for (const addrinfo* a = found; a; a = a->ai_next) {
    char host[NI_MAXHOST];
    if (::getnameinfo(a->ai_addr, a->ai_addrlen, host, sizeof host, nullptr, 0, NI_NUMERICHOST) ==
        0) {
      text += std::string(host) + "\n";
    }
  }
  return text;
}

}  // namespace

std::vector<std::string> resolve_name(const std::string& name, Milliseconds limit) {
  const TimePoint until = TimePoint::clock::now() + limit;
  auto child = fork_answer([&] { return addresses_of(name); });
  if (!child) return {};
  const PipedAnswer answer = read_until(child->output, until, kAnswerBytesMax);
  kill(*child);  // A name server may let it wait for long.
  (void)reap_within(*child, kEndLimit);
  std::vector<std::string> addresses;
  std::istringstream lines(answer.in_time ? answer.text : "");
  for (std::string line; std::getline(lines, line);) addresses.push_back(line);
  return addresses;
}

namespace {

// "fe80::1%lo" is one; "10.0.0.1:29400" and "[::1]", which look like numbers, are not.
bool is_address(const std::string& number) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST;
  addrinfo* found = nullptr;
  if (::getaddrinfo(number.c_str(), nullptr, &hints, &found) != 0) return false;
  ::freeaddrinfo(found);
  return true;
}

}  // namespace

Result<void> resolve_local_address(Options& options) {
  for (const auto& [flag, address] : {std::pair("--local-addr", &options.local_addr),
                                      std::pair("--advertise-addr", &options.advertise_addr)}) {
    if (!*address) continue;
    if (is_numeric(**address)) {
      if (is_address(**address)) continue;
      return Failure{Errc::kBadOption, std::string(flag) + " '" + **address +
                                           "': give a host's name or its address alone, without a "
                                           "port and without brackets"};
    }
    const auto found = resolve_name(**address);
    if (found.empty()) {
      return Failure{Errc::kBadOption,
                     std::string(flag) + " '" + **address + "': there is no host of that name"};
    }
    *address = found.front();
  }
  return {};
}

}  // namespace ddprun::launcher
