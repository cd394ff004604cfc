#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

#include "agent/node/daemon_link.h"
#include "common/assert.h"
#include "rendezvous/coordinator/coordinator.h"

namespace ddprun::agent {
namespace {

using Clock = std::chrono::steady_clock;

// The daemon's decisions without a daemon: messages go through the loop instead of through a
// socket, so that neither side is ever called from inside a call of its own.
class EmbeddedLink : public DaemonLink {
 public:
  EmbeddedLink(boost::asio::io_context& loop, std::string run_id, rendezvous::NodeId node)
      : loop_(loop), run_id_(std::move(run_id)), node_(std::move(node)), timer_(loop) {}

  void start(Handlers handlers) override {
    handlers_ = std::move(handlers);
    boost::asio::post(loop_, [this] {
      send(rendezvous::Hello{rendezvous::kProtocolVersion, run_id_, node_});
      handlers_.on_up();
    });
  }

  bool send(const rendezvous::AgentMessage& message) override {
    boost::asio::post(loop_, [this, body = encode(message)] {
      carry_out(coordinator_.on_message(kLink, body, Clock::now()));
    });
    return true;
  }

  void close(std::function<void()> done) override {
    timer_.cancel();
    boost::asio::post(loop_, std::move(done));
  }

  std::string local_address() const override { return "127.0.0.1"; }

  std::optional<rendezvous::DaemonStatus> watched() const override {
    return coordinator_.watched(Clock::now());
  }

 private:
  static constexpr rendezvous::LinkId kLink = 1;

  void carry_out(std::vector<rendezvous::LinkAction> actions) {
    (void)coordinator_.take_records();
    for (rendezvous::LinkAction& action : actions) {
      auto* send = std::get_if<rendezvous::Send>(&action);
      DDPRUN_ASSERT(send != nullptr);  // Nobody hangs up on itself.
      auto message = rendezvous::decode_daemon_message(send->body);
      DDPRUN_ASSERT(message.has_value());
      handlers_.on_message(std::move(*message));
    }
    arm();
  }

  void arm() {
    const auto due = coordinator_.deadline();
    if (!due) return static_cast<void>(timer_.cancel());
    timer_.expires_at(*due);
    timer_.async_wait([this](const boost::system::error_code& ec) {
      if (!ec) carry_out(coordinator_.on_tick(Clock::now()));
    });
  }

  boost::asio::io_context& loop_;
  std::string run_id_;
  rendezvous::NodeId node_;
  Handlers handlers_;
  rendezvous::Coordinator coordinator_;
  boost::asio::steady_timer timer_;
};

}  // namespace

std::unique_ptr<DaemonLink> embedded_link(boost::asio::io_context& loop, std::string run_id,
                                          rendezvous::NodeId node) {
  return std::make_unique<EmbeddedLink>(loop, std::move(run_id), std::move(node));
}

}  // namespace ddprun::agent
