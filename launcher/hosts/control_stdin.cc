#include "launcher/hosts/control_stdin.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <vector>

#include "common/exit_status.h"
#include "common/system/descriptors.h"
#include "common/system/secrets.h"
#include "common/time.h"
#include "launcher/guard/guarded_process.h"
#include "launcher/hosts/remote_node.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// The other hosts are reached first, and some of them may get a copy of ddprun; ssh's end is the
// end of the input.
constexpr Milliseconds kOrdersLimit = kCopyLimit + 30s;

// Reads once. False: the input has ended, or nothing arrived within the limit.
bool read_more(FrameReader& reader, std::optional<TimePoint> end) {
  if (end && Clock::now() >= *end) return false;
  pollfd input{STDIN_FILENO, POLLIN, 0};
  const int ready = poll_until({&input, 1}, end);
  if (ready < 0 && errno == EINTR) return true;
  if (ready <= 0) return false;
  char buffer[65536];
  const ssize_t n = ::read(STDIN_FILENO, buffer, sizeof buffer);
  if (n > 0) reader.feed(std::string_view(buffer, static_cast<std::size_t>(n)));
  return n > 0 || (n < 0 && errno == EINTR);
}

void forget_own_defaults() {
  std::vector<std::string> names;
  for (char** entry = ::environ; *entry; ++entry) {
    const std::string_view text = *entry;
    if (text.starts_with("PET_")) names.emplace_back(text.substr(0, text.find('=')));
  }
  for (const std::string& name : names) ::unsetenv(name.c_str());
}

int watch(FrameReader& reader, pid_t guardian) {
  for (;;) {
    auto body = reader.next();
    while (body && *body) {
      if (const auto signal = decode_signal(**body)) ::kill(guardian, *signal);
      if (**body == kKillNow) ::sigqueue(guardian, SIGINT, {.sival_int = kNowValue});
      if (**body == kWithdrawn) ::kill(guardian, kLeaveSignal);
      body = reader.next();
    }
    if (!body || !read_more(reader, std::nullopt)) break;
  }
  ::kill(guardian, SIGTERM);
  return EXIT_SUCCESS;
}

}  // namespace

Result<std::optional<Orders>> ControlStdin::receive(ControlStdin& control) {
  const std::string ready = std::string(kReadyLine) + "\n";
  if (::write(STDOUT_FILENO, ready.data(), ready.size()) < 0) return std::optional<Orders>();
  const TimePoint end = Clock::now() + kOrdersLimit;
  for (;;) {
    auto body = control.reader_.next();
    if (!body) return body.error();
    if (*body) {
      auto orders = decode_orders(**body);
      if (!orders) return orders.error();
      return std::optional(std::move(*orders));
    }
    if (!read_more(control.reader_, end)) return std::optional<Orders>();
  }
}

Result<void> ControlStdin::obey(const Orders& orders) {
  forget_own_defaults();
  for (const std::string& entry : orders.environment) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0) continue;
    ::setenv(entry.substr(0, equals).c_str(), entry.c_str() + equals + 1, 1);
  }
  if (!orders.token.empty()) ::setenv(kTokenVariable, orders.token.c_str(), 1);
  if (::chdir(orders.working_folder.c_str()) == 0) return {};
  return Failure{Errc::kNotFound, "there is no folder " + orders.working_folder + " here (" +
                                      std::strerror(errno) + "), where ddprun was started"};
}

std::optional<std::string> ControlStdin::next() {
  for (;;) {
    auto body = reader_.next();
    if (!body) return std::nullopt;
    if (*body) return std::string(**body);
    if (!read_more(reader_, std::nullopt)) return std::nullopt;
  }
}

GuardedChild ControlStdin::watcher() {
  GuardedChild child;
  child.kind = GuardedChild::Kind::kService;
  child.name = "the line to the launching ddprun";
  child.body = [this] { return watch(reader_, ::getppid()); };
  return child;
}

}  // namespace ddprun::launcher
