#include "launcher/plan/resolve_name.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <sstream>

#include "common/system/descriptors.h"
#include "common/text/words.h"
#include "launcher/plan/plan.h"

namespace ddprun::launcher {
namespace {

[[noreturn]] void print_addresses(const std::string& name, int fd, pid_t parent) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // A name server may let us wait long after that.
  if (::getppid() != parent) ::_exit(1);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (::getaddrinfo(name.c_str(), nullptr, &hints, &found) != 0) ::_exit(1);
  std::string text;
  for (const addrinfo* a = found; a; a = a->ai_next) {
    char host[NI_MAXHOST];
    if (::getnameinfo(a->ai_addr, a->ai_addrlen, host, sizeof host, nullptr, 0, NI_NUMERICHOST) ==
        0) {
      text += std::string(host) + "\n";
    }
  }
  const ssize_t written = ::write(fd, text.data(), text.size());
  ::_exit(written == static_cast<ssize_t>(text.size()) ? 0 : 1);
}

// Everything until the other side closes, or until the time is over.
std::string read_until(int fd, TimePoint end) {
  std::string text;
  for (;;) {
    const auto left =
        std::chrono::duration_cast<Milliseconds>(end - std::chrono::steady_clock::now());
    pollfd ready{fd, POLLIN, 0};
    if (left.count() <= 0 || ::poll(&ready, 1, static_cast<int>(left.count())) <= 0) return "";
    char buffer[4096];
    const ssize_t n = ::read(fd, buffer, sizeof buffer);
    if (n <= 0) return text;
    text.append(buffer, static_cast<std::size_t>(n));
  }
}

}  // namespace

std::vector<std::string> resolve_name(const std::string& name, Milliseconds limit) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return {};
  UniqueFd reader(ends[0]), writer(ends[1]);
  const pid_t parent = ::getpid(), child = ::fork();
  if (child < 0) return {};
  if (child == 0) print_addresses(name, writer.get(), parent);
  writer.reset();
  std::istringstream lines(read_until(reader.get(), std::chrono::steady_clock::now() + limit));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  std::vector<std::string> addresses;
  for (std::string line; std::getline(lines, line);) addresses.push_back(line);
  return addresses;
}

Result<void> resolve_local_address(Options& options) {
  if (!options.local_addr || is_numeric(*options.local_addr)) return {};
  const auto found = resolve_name(*options.local_addr);
  if (found.empty()) {
    return Failure{Errc::kBadOption,
                   "--local-addr '" + *options.local_addr + "': there is no host of that name"};
  }
  options.local_addr = found.front();
  return {};
}

}  // namespace ddprun::launcher
