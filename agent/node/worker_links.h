#pragma once
// The agent's ends of its workers' links (common/worker_link.h), one per worker. Nothing here waits
// for a worker: what a full socket does not take is kept, as far as there is a limit for it. A
// worker that floods its link or sends anything but messages loses it; the worker itself lives on.
// Owned by Agent, all on its loop.

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/error.h"
#include "common/system/descriptors.h"
#include "common/time.h"
#include "common/worker_link.h"

namespace ddprun::agent {

class WorkerLinks {
 public:
  // In one period a worker may send so much. It sends two or three messages a change.
  static constexpr Duration kPeriod = std::chrono::seconds(10);
  static constexpr int kMessagesMax = 256;
  // What may wait for a worker that does not read.
  static constexpr std::size_t kUnsentMax = 64;

  explicit WorkerLinks(boost::asio::io_context& loop) : loop_(loop) {}

  // A link for a worker that is about to be started: returns the worker's end. What an earlier
  // worker of that local rank still sends is not read any more.
  Result<UniqueFd> open(int local_rank);
  void close(int local_rank);
  // What a worker that has ended had sent before.
  void read_rest(int local_rank);

  // Nothing happens if there is no link.
  void send(int local_rank, const worker_link::AgentMessage& message);

  // Called from the loop, and at any message again: a worker may repeat itself.
  std::function<void(int local_rank, int min_world)> on_ready;
  std::function<void(int local_rank, int round, std::int64_t step)> on_left;
  std::function<void(int local_rank, const worker_link::Resumed&)> on_resumed;
  // The link is closed, by `why`; empty: the worker, which may have ended, has closed it.
  std::function<void(int local_rank, const std::string& why)> on_lost;

 private:
  struct Link;

  void wait(const std::shared_ptr<Link>& link);
  void read_turn(const std::shared_ptr<Link>& link);
  bool read_one(Link& link);
  bool within_limits(Link& link) const;
  void accept(Link& link, std::string_view datagram);
  void take(Link& link, const worker_link::Ready& ready);
  void take(Link& link, const worker_link::LeftRound& left);
  void take(Link& link, const worker_link::Resumed& resumed);
  void write(const std::shared_ptr<Link>& link);
  void lose_later(const std::shared_ptr<Link>& link, std::string why);
  void lose(Link& link, const std::string& why);

  boost::asio::io_context& loop_;
  std::map<int, std::shared_ptr<Link>> links_;  // By local rank.
};

}  // namespace ddprun::agent
