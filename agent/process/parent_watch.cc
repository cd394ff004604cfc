#include "agent/process/parent_watch.h"

#include <unistd.h>

#include <boost/asio/post.hpp>
#include <cerrno>

#include "common/system/held_process.h"

namespace ddprun::agent {

using boost::asio::posix::stream_descriptor;

Result<void> ParentWatch::start(int parent, std::function<void()> on_gone) {
  const int pidfd = open_pidfd(parent).release();
  if (pidfd < 0 && !has_pidfds()) {
    look_again(parent, std::move(on_gone));
    return {};
  }
  if (pidfd < 0 && errno != ESRCH) return errno_failure("watching the parent process");
  if (pidfd >= 0) pidfd_.assign(pidfd);
  // Only now, with the pidfd open, is it certain that the pidfd refers to the parent.
  if (pidfd < 0 || ::getppid() != parent) {
    boost::asio::post(pidfd_.get_executor(), std::move(on_gone));
    return {};
  }
  pidfd_.async_wait(stream_descriptor::wait_read,
                    [on_gone = std::move(on_gone)](boost::system::error_code error) {
                      if (!error) on_gone();
                    });
  return {};
}

// Once it has gone, another process is our parent.
void ParentWatch::look_again(int parent, std::function<void()> on_gone) {
  if (::getppid() != parent) {
    boost::asio::post(look_.get_executor(), std::move(on_gone));
    return;
  }
  look_.expires_after(kLookAgain);
  look_.async_wait([this, parent, on_gone = std::move(on_gone)](boost::system::error_code error) {
    if (!error) look_again(parent, on_gone);
  });
}

}  // namespace ddprun::agent
