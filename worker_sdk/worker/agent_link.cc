#include "worker_sdk/worker/agent_link.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <string_view>
#include <utility>

#include "common/assert.h"
#include "common/text/figures.h"
#include "worker_sdk/base/operation.h"
#include "worker_sdk/base/system_limits.h"

namespace ddprun::worker_sdk {
namespace {

constexpr const char* kOperation = "the link to the agent";
// The agent reads at once; one that does not for so long is gone.
constexpr std::chrono::milliseconds kSendLimit{5000};

int option_of(int socket, int name) {
  int value = -1;
  socklen_t size = sizeof(value);
  return ::getsockopt(socket, SOL_SOCKET, name, &value, &size) == 0 ? value : -1;
}

}  // namespace

std::unique_ptr<AgentLink> AgentLink::open(const char* variable) {
  if (!variable || !*variable) return nullptr;
  const std::string_view text = variable;
  const int number = as_number<int>(text).value_or(-1);
  if (number < 0 || option_of(number, SO_DOMAIN) != AF_UNIX ||
      option_of(number, SO_TYPE) != SOCK_SEQPACKET) {
    throw Error(ErrorKind::bad_environment, {.operation = kOperation},
                std::string(worker_link::kVariable) + "=" + variable +
                    " is no link to an agent; is this process a child of the worker, or has an "
                    "earlier Job of this process ended?");
  }
  // FD_CLOEXEC marks a descriptor that a Job has taken; an inherited descriptor does not have it.
  if ((::fcntl(number, F_GETFD) & FD_CLOEXEC) != 0) {
    throw Error(ErrorKind::bad_argument, {.operation = kOperation},
                "another Job of this process, or of the one that it was forked off, has it; a "
                "process can have one Job in its life");
  }
  ::fcntl(number, F_SETFD, FD_CLOEXEC);  // Programs that this one starts are not workers.
  return std::make_unique<AgentLink>(UniqueFd(number));
}

AgentLink::AgentLink(UniqueFd socket)
    : socket_(std::move(socket)), stop_(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  DDPRUN_ASSERT(socket_);
  if (!stop_) throw refused({.operation = kOperation}, "eventfd", errno);
  thread_ = start_thread("ddprun-link", {.operation = kOperation}, [this] { run(); });
}

// A forked child has no such thread.
AgentLink::~AgentLink() {
  if (forks_ != fork_count()) {
    thread_.detach();
    return;
  }
  ::eventfd_write(stop_.get(), 1);
  thread_.join();
}

void AgentLink::send(const worker_link::WorkerMessage& message) {
  const std::string bytes = worker_link::encode(message);
  const Clock::time_point until = deadline_after(kSendLimit);
  for (;;) {
    const int flags = MSG_NOSIGNAL | MSG_DONTWAIT;
    if (::send(socket_.get(), bytes.data(), bytes.size(), flags) >= 0) return;
    if (errno == EINTR) continue;
    pollfd writable{socket_.get(), POLLOUT, 0};
    if (errno != EAGAIN || Clock::now() >= until) return;  // run() sees its end.
    (void)::poll(&writable, 1, static_cast<int>(left_until(until).count()));
  }
}

HeldSeat AgentLink::next_seat(int round) {
  std::unique_lock lock(mutex_);
  const auto has_seat = [&] {
    return seat_ && seat_->place.round > round && !seat_->fence->is_raised();
  };
  changed_.wait(lock, [&] { return ended_ || has_seat(); });
  if (has_seat() && !unsound_) return *seat_;
  throw Error(*ended_);
}

bool AgentLink::await_fence(const HeldSeat& seat, std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, patience, [&] { return ended_ || seat.fence->is_raised(); });
  return seat.fence->is_raised();
}

void AgentLink::leave(const HeldSeat& seat, const std::string& why) {
  seat.fence->raise({.lost_rank = -1, .why = why});
  send(worker_link::LeftRound{.round = seat.place.round, .step = committed_.load()});
}

void AgentLink::require_sound() const {
  const std::lock_guard lock(mutex_);
  if (unsound_) throw Error(*ended_);
}

void AgentLink::run() {
  for (;;) {
    std::array<pollfd, 2> entries{{{socket_.get(), POLLIN, 0}, {stop_.get(), POLLIN, 0}}};
    if (::poll(entries.data(), entries.size(), -1) < 0 && errno != EINTR) {
      return end(ErrorKind::system, std::string("poll: ") + std::strerror(errno));
    }
    if (entries[1].revents != 0) return;
    if (entries[0].revents != 0 && !read_one()) return;
  }
}

bool AgentLink::read_one() {
  std::array<char, worker_link::kMessageBytesMax + 1> bytes;
  const ssize_t got = ::recv(socket_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got <= 0) {
    end(ErrorKind::unreachable, "the agent has closed it");
    return false;
  }
  const auto message =
      worker_link::decode_agent_message({bytes.data(), static_cast<std::size_t>(got)});
  if (message.has_error()) {
    end(ErrorKind::mismatch,
        "the agent sent a message that this worker cannot read: " + message.error().context);
    return false;
  }
  if (const auto* refused = std::get_if<worker_link::Refused>(&message.value())) {
    end(ErrorKind::mismatch, "the agent refuses this worker: " + refused->why);
    return false;
  }
  take(message.value());
  return true;
}

void AgentLink::take(const worker_link::AgentMessage& message) {
  if (const auto* seated = std::get_if<worker_link::Seated>(&message)) return take(*seated);
  if (const auto* fence = std::get_if<worker_link::Fence>(&message)) return take(*fence);
  if (const auto* change = std::get_if<worker_link::Change>(&message)) {
    if (change->round > change_.load()) change_.store(change->round);
  }
}

// A seat in a later round is the end of all earlier ones.
void AgentLink::take(const worker_link::Seated& seated) {
  std::shared_ptr<RoundFence> before;
  {
    const std::lock_guard lock(mutex_);
    if (seated.round <= fenced_ || (seat_ && seated.round <= seat_->place.round)) return;
    if (seat_) before = seat_->fence;
    seat_ = HeldSeat{.place = seated, .fence = std::make_shared<RoundFence>()};
  }
  if (before) before->raise({.lost_rank = -1, .why = "the next round begins"});
  wake();
}

void AgentLink::take(const worker_link::Fence& fence) {
  std::shared_ptr<RoundFence> raised;
  {
    const std::lock_guard lock(mutex_);
    if (fence.round > fenced_) fenced_ = fence.round;
    if (seat_ && seat_->place.round <= fence.round) raised = seat_->fence;
  }
  if (raised) raised->raise({.lost_rank = fence.lost_rank, .why = fence.why});
  wake();
  send(worker_link::LeftRound{.round = fence.round, .step = committed_.load()});
}

void AgentLink::end(ErrorKind kind, const std::string& why) {
  {
    const std::lock_guard lock(mutex_);
    ended_.emplace(kind, Error::Where{.operation = kOperation}, why);
    unsound_ = kind == ErrorKind::mismatch;
  }
  wake();
}

// Fences are raised without the lock. Taking the lock ensures that a waiter that has just seen its
// fence not raised is already waiting.
void AgentLink::wake() {
  { const std::lock_guard lock(mutex_); }
  changed_.notify_all();
}

}  // namespace ddprun::worker_sdk
