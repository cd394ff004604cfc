#include "launcher/watch/window_client.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>

#include "common/assert.h"
#include "common/system/unique_fd.h"

namespace ddprun::launcher {
namespace {

using Clock = std::chrono::steady_clock;

constexpr Milliseconds kAnswerLimit{5'000};
constexpr std::size_t kAnswerBytesMax = std::size_t{64} << 20;

// The folder is named by its descriptor: its path may be longer than an address.
Result<UniqueFd> connected(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const UniqueFd folder(::open(path.substr(0, slash).c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder) return errno_failure("opening the folder of " + path);
  const std::string name =
      "/proc/self/fd/" + std::to_string(folder.get()) + "/" + path.substr(slash + 1);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  DDPRUN_ASSERT(name.size() < sizeof address.sun_path);
  name.copy(address.sun_path, name.size());
  UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!fd) return errno_failure("making a socket");
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) {
    return errno_failure("connecting to " + path);
  }
  return fd;
}

bool readable(int fd, TimePoint until) {
  const auto left = std::chrono::ceil<Milliseconds>(until - Clock::now());
  pollfd poll{fd, POLLIN, 0};
  return left.count() > 0 && ::poll(&poll, 1, static_cast<int>(left.count())) == 1;
}

}  // namespace

Result<std::string> ask_window(const std::string& path, const std::string& question) {
  auto fd = connected(path);
  if (!fd) return fd.error();
  const std::string line = question + "\n";
  if (::send(fd->get(), line.data(), line.size(), MSG_NOSIGNAL) != std::ssize(line)) {
    return errno_failure("asking at " + path);
  }
  const TimePoint until = Clock::now() + kAnswerLimit;
  std::string answer;
  char block[65'536];
  while (answer.size() < kAnswerBytesMax && readable(fd->get(), until)) {
    const ssize_t got = ::recv(fd->get(), block, sizeof block, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return errno_failure("reading from " + path);
    if (got == 0 && !answer.empty()) return answer;
    if (got == 0) return Failure{Errc::kPeerSilent, "the agent at " + path + " hung up"};
    answer.append(block, static_cast<std::size_t>(got));
  }
  return Failure{Errc::kPeerSilent, "the agent at " + path + " does not answer"};
}

std::vector<std::string> windows_of(const PastRun& run) {
  std::vector<std::string> paths;
  if (run.state != RunState::kRunning || run.record.folder.empty()) return paths;
  for (int index = 0;; ++index) {
    const std::string path = window_path(run.record.folder, index);
    if (::access(path.c_str(), F_OK) != 0) return paths;
    paths.push_back(path);
  }
}

}  // namespace ddprun::launcher
