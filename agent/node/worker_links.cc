#include "agent/node/worker_links.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <deque>
#include <utility>

#include "common/assert.h"

namespace ddprun::agent {
namespace {

using boost::asio::posix::stream_descriptor;
using Clock = std::chrono::steady_clock;

constexpr int kReadsInTurn = 8;  // Then it is another's turn.

std::string version_text(int version) {
  return "the worker speaks version " + std::to_string(version) +
         " of the worker link, its agent version " + std::to_string(worker_link::kVersion) +
         ": use ddprun and its SDK from one release";
}

}  // namespace

struct WorkerLinks::Link {
  Link(boost::asio::io_context& loop, int rank, UniqueFd end)
      : local_rank(rank), socket(loop, end.release()) {}

  int local_rank;
  stream_descriptor socket;
  bool writing = false;  // Waits for room.
  std::deque<std::string> unsent;
  TimePoint period{};
  int messages = 0;  // In that period.
};

Result<UniqueFd> WorkerLinks::open(int local_rank) {
  DDPRUN_ASSERT(local_rank >= 0 && on_ready && on_left && on_resumed && on_lost);
  close(local_rank);
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return errno_failure("making a link to local rank " + std::to_string(local_rank));
  }
  UniqueFd ours(ends[0]), theirs(ends[1]);
  const auto link = std::make_shared<Link>(loop_, local_rank, std::move(ours));
  links_[local_rank] = link;
  wait(link);
  return theirs;
}

void WorkerLinks::close(int local_rank) {
  const auto found = links_.extract(local_rank);
  boost::system::error_code ignored;
  if (!found.empty()) found.mapped()->socket.close(ignored);
}

void WorkerLinks::read_rest(int local_rank) {
  const auto found = links_.find(local_rank);
  if (found == links_.end()) return;
  const std::shared_ptr<Link> link = found->second;
  while (link->socket.is_open() && read_one(*link)) continue;
}

void WorkerLinks::wait(const std::shared_ptr<Link>& link) {
  link->socket.async_wait(stream_descriptor::wait_read,
                          [this, held = std::weak_ptr(link)](boost::system::error_code error) {
                            const auto kept = held.lock();
                            if (!error && kept) read_turn(kept);
                          });
}

void WorkerLinks::read_turn(const std::shared_ptr<Link>& link) {
  for (int i = 0; i < kReadsInTurn && link->socket.is_open(); ++i) {
    if (!read_one(*link)) break;
  }
  if (link->socket.is_open()) wait(link);
}

// False: there is nothing more for now.
bool WorkerLinks::read_one(Link& link) {
  std::array<char, worker_link::kMessageBytesMax> datagram;
  const ssize_t got = ::recv(link.socket.native_handle(), datagram.data(), datagram.size(),
                             MSG_DONTWAIT | MSG_TRUNC);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return false;
  if (got <= 0) {  // A reset: it was closed with messages of ours unread.
    lose(link, "");
  } else if (static_cast<std::size_t>(got) > datagram.size()) {
    lose(link, "a message of " + std::to_string(got) + " bytes");
  } else if (!within_limits(link)) {
    lose(link, "more than " + std::to_string(kMessagesMax) + " messages within 10 s");
  } else {
    accept(link, std::string_view(datagram.data(), static_cast<std::size_t>(got)));
  }
  return true;
}

bool WorkerLinks::within_limits(Link& link) const {
  const TimePoint now = Clock::now();
  if (now - link.period >= kPeriod) link.period = now, link.messages = 0;
  return ++link.messages <= kMessagesMax;
}

void WorkerLinks::accept(Link& link, std::string_view datagram) {
  const auto message = worker_link::decode_worker_message(datagram);
  if (!message) return lose(link, message.error().context);
  std::visit([&](const auto& m) { take(link, m); }, *message);
}

void WorkerLinks::take(Link& link, const worker_link::Ready& ready) {
  if (ready.version == worker_link::kVersion) {
    return on_ready(link.local_rank, std::max(ready.min_world, 0));
  }
  const std::string why = version_text(ready.version);
  send(link.local_rank, worker_link::Refused{why});
  lose(link, why);
}

void WorkerLinks::take(Link& link, const worker_link::LeftRound& left) {
  on_left(link.local_rank, left.round, left.step);
}

void WorkerLinks::take(Link& link, const worker_link::Resumed& resumed) {
  on_resumed(link.local_rank, resumed);
}

void WorkerLinks::send(int local_rank, const worker_link::AgentMessage& message) {
  const auto found = links_.find(local_rank);
  if (found == links_.end()) return;
  const std::shared_ptr<Link> link = found->second;
  if (link->unsent.size() == kUnsentMax) return lose_later(link, "it does not read its link");
  link->unsent.push_back(worker_link::encode(message));
  if (!link->writing) write(link);
}

void WorkerLinks::write(const std::shared_ptr<Link>& link) {
  link->writing = false;
  while (link->socket.is_open() && !link->unsent.empty()) {
    const std::string& first = link->unsent.front();
    const ssize_t sent = ::send(link->socket.native_handle(), first.data(), first.size(),
                                MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent >= 0) {
      link->unsent.pop_front();
    } else if (errno == EAGAIN || errno == ENOBUFS) {
      link->writing = true;
      return link->socket.async_wait(
          stream_descriptor::wait_write,
          [this, held = std::weak_ptr(link)](boost::system::error_code error) {
            const auto kept = held.lock();
            if (!error && kept) write(kept);
          });
    } else if (errno != EINTR) {
      return;  // It is closed on the other side; reading finds that out.
    }
  }
}

// Not at once: the sender is in the middle of something.
void WorkerLinks::lose_later(const std::shared_ptr<Link>& link, std::string why) {
  boost::asio::post(loop_, [this, held = std::weak_ptr(link), why = std::move(why)] {
    const auto kept = held.lock();
    if (kept && kept->socket.is_open()) lose(*kept, why);
  });
}

void WorkerLinks::lose(Link& link, const std::string& why) {
  const int local_rank = link.local_rank;
  close(local_rank);
  on_lost(local_rank, why);
}

}  // namespace ddprun::agent
