#include "agent/process/parent_watch.h"

#include <unistd.h>

#include <boost/asio/post.hpp>
#include <cerrno>
#include <utility>

#include "common/system/held_process.h"

namespace ddprun::agent {

using boost::asio::posix::stream_descriptor;

Result<void> ParentWatch::start(int parent, std::function<void()> on_gone) {
  const int pidfd = open_pidfd(parent).release();
  const bool cannot_hold = pidfd < 0 && !has_pidfds();
  if (pidfd < 0 && !cannot_hold && errno != ESRCH) {
    return errno_failure("watching the parent process");
  }
  parent_ = parent;
  on_gone_ = std::move(on_gone);
  if (cannot_hold) {
    look_again();
    return {};
  }
  if (pidfd >= 0) pidfd_.assign(pidfd);
  // Only now, with the pidfd open, is it certain that the pidfd refers to the parent.
  if (pidfd < 0 || ::getppid() != parent) {
    boost::asio::post(pidfd_.get_executor(), [this] { is_gone(); });
    return {};
  }
  pidfd_.async_wait(stream_descriptor::wait_read, [this](boost::system::error_code error) {
    if (!error) is_gone();
  });
  return {};
}

// Once it has gone, another process is our parent.
bool ParentWatch::is_gone() {
  if (parent_ == 0 || ::getppid() == parent_) return false;
  if (const auto on_gone = std::exchange(on_gone_, nullptr)) on_gone();
  return true;
}

void ParentWatch::look_again() {
  timer_.expires_after(::getppid() == parent_ ? kLookAgain : Milliseconds(0));
  timer_.async_wait([this](boost::system::error_code error) {
    if (!error && !is_gone()) look_again();
  });
}

}  // namespace ddprun::agent
