#include "agent/node/daemon_link.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <random>
#include <utility>

#include "common/assert.h"
#include "common/release.h"
#include "common/system/log.h"
#include "common/system/secrets.h"
#include "rendezvous/coordinator/coordinator.h"
#include "rendezvous/net/connect.h"

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
      send(rendezvous::Hello{rendezvous::kProtocolVersion, run_id_, node_, release()});
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
      DDPRUN_ASSERT(send != nullptr);  // A hangup of itself is impossible.
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

namespace {

using rendezvous::Link;
using Clock = std::chrono::steady_clock;

constexpr Milliseconds kRetryFirst{20};
constexpr Milliseconds kRetryMax{500};
constexpr int kBeatsInSilence = 2 * rendezvous::kBeatsInTimeout;  // The daemon gives up before.
// How long we stay with a daemon that sends nothing though its host answers.
constexpr Milliseconds kStandstillMax{60'000};

class RemoteLink : public DaemonLink {
 public:
  RemoteLink(boost::asio::io_context& loop, RemoteLinkOptions options)
      : loop_(loop), options_(std::move(options)), retry_(loop), silence_(loop) {
    addresses_ = {{options_.host, options_.port}};
    addresses_.insert(addresses_.end(), options_.others.begin(), options_.others.end());
  }

  void start(Handlers handlers) override {
    handlers_ = std::move(handlers);
    connect();
  }

  bool send(const rendezvous::AgentMessage& message) override {
    if (link_) link_->send(encode(message));
    return link_ != nullptr;
  }

  void close(std::function<void()> done) override {
    attempt_.reset();
    retry_.cancel();
    silence_.cancel();
    if (!link_) return done();
    on_closed_ = std::move(done);
    link_->close();
  }

  std::string local_address() const override { return link_ ? link_->local_address() : ""; }

  std::string peer_address() const override { return link_ ? link_->peer_address() : ""; }

  std::optional<DaemonAddress> daemon() const override { return addresses_[which_]; }

 private:
  void connect() {
    rendezvous::ConnectOptions to;
    to.host = addresses_[which_].host;
    to.port = addresses_[which_].port;
    to.token = options_.token;
    to.timeout = options_.attempt_limit;
    attempt_ = async_connect(loop_, std::move(to), [this](Result<std::shared_ptr<Link>> result) {
      if (result) return connected(std::move(*result));
      failed(result.error());
    });
  }

  void connected(std::shared_ptr<Link> link) {
    link_ = std::move(link);
    greeted_ = reported_waiting_ = false;
    last_received_ = Clock::now();
    link_->start({
        .on_message = [this](const std::string& body) { receive(body); },
        .on_closed =
            [this](const Failure& why) {
              link_.reset();
              if (on_closed_) return std::exchange(on_closed_, nullptr)();
              silence_.cancel();
              if (refused_) return;
              if (is_fatal(why)) return handlers_.on_fatal(to_string(why));
              if (searches()) return not_this_one(address_text() + " has hung up on us");
              const bool was_silent = std::exchange(silent_, false);
              // It took our connection and then sent nothing.
              const bool answers = was_silent && !greeted_ && addresses_.size() == 1;
              handlers_.on_down(was_silent ? silence_text() : to_string(why), answers);
              if (!greeted_ || was_silent) use_next_address();
              try_again();
            },
    });
    link_->send(encode(rendezvous::Hello{rendezvous::kProtocolVersion, options_.run_id,
                                         options_.node, release(), /*relays=*/true}));
    watch_silence();
    // The handshake has proved that it is the daemon: messages can follow the hello at once.
    // Without TLS anything that listens takes our connection, and only its answer proves it.
    if (up_at_once()) handlers_.on_up();
  }

  bool up_at_once() const { return !options_.token.empty() && !options_.are_guesses; }
  // We do not know yet at which of several addresses the daemon of our run is.
  bool searches() const { return options_.are_guesses && addresses_.size() > 1; }
  bool is_fatal(const Failure& why) const { return why.code == Errc::kBadToken && !searches(); }

  void greeted() {
    greeted_ = true;
    pause_ = kRetryFirst;
    if (searches()) {
      addresses_ = {addresses_[which_]};
      which_ = 0;
    }
    if (!up_at_once()) handlers_.on_up();
  }

  void not_this_one(const std::string& why) {
    silent_ = false;
    handlers_.on_down(why + "; is it the daemon of another run?", /*answers=*/false);
    use_next_address();
    try_again();
  }

  void failed(const Failure& why) {
    if (is_fatal(why)) return handlers_.on_fatal(to_string(why));
    const bool answers = why.code == Errc::kPeerSilent || why.code == std::errc::connection_refused;
    // A name may become known: the node behind it is still being made. Of several daemons another
    // one may lead.
    const std::string text = why.code == Errc::kNotFound ? why.context : to_string(why);
    handlers_.on_down(text, answers && addresses_.size() == 1);
    use_next_address();
    try_again();
  }

  void use_next_address() { which_ = (which_ + 1) % addresses_.size(); }

  // The pause grows with each turn through the addresses, not with each of them.
  void try_again() {
    // Thousands that lost the daemon in the same moment do not all come back in the same moment.
    std::uniform_int_distribution<Milliseconds::rep> pause(pause_.count() / 2, pause_.count());
    retry_.expires_after(Milliseconds(pause(random_)));
    if (which_ == 0) pause_ = std::min(2 * pause_, kRetryMax);
    retry_.async_wait([this](const boost::system::error_code& ec) {
      if (!ec) connect();
    });
  }

  void receive(const std::string& body) {
    last_received_ = Clock::now();
    reported_waiting_ = false;
    log::debug("received " + body);
    auto message = rendezvous::decode_daemon_message(body);
    if (!message) return unreadable(message.error());
    if (const auto* alive = std::get_if<rendezvous::Alive>(&*message)) {
      silence_max_ = std::max(options_.silence_max, kBeatsInSilence * alive->beat);
      if (alive->release) release_ = *alive->release;
    }
    if (!greeted_) greeted();
    if (std::holds_alternative<rendezvous::Refuse>(*message)) refused_ = true;
    // This node leaves: it takes no order any more, and no other exit code.
    if (reported_unreadable_ && !std::holds_alternative<rendezvous::Account>(*message)) return;
    handlers_.on_message(std::move(*message));
  }

  // The daemon would send the same on another connection. What has not greeted us may be something
  // else that listens there.
  void unreadable(const Failure& why) {
    if (reported_unreadable_) return;
    const std::string what = address_text() + " sends what this " +
                             rendezvous::release_text(release()) + " cannot read (" + why.context +
                             ")";
    if (!greeted_ && !up_at_once()) {
      log::warning(what + "; is it a ddprun daemon?");
      return link_->close();
    }
    reported_unreadable_ = true;
    handlers_.on_unreadable("the rendezvous daemon at " + what + "; it has " +
                            rendezvous::release_text(release_) +
                            ": install the same ddprun on every node");
  }

  // The agent beats, the daemon answers; if it does not, the connection may be dead without notice,
  // or the daemon stands still.
  void watch_silence() { check_at(last_received_ + silence_max_); }

  void check_at(Clock::time_point when) {
    silence_.expires_at(when);
    silence_.async_wait([this, when](const boost::system::error_code& ec) {
      if (ec || !link_) return;
      const auto now = Clock::now();
      if (now - when > rendezvous::kTickLateMax) last_received_ = now;  // We stood still ourselves.
      if (now - last_received_ < silence_max_) return watch_silence();
      if (stays_with_the_daemon(now)) return check_at(now + silence_max_ / kBeatsInSilence);
      silent_ = true;
      link_->send(encode(rendezvous::AgentMessage(rendezvous::Away{})));
      link_->close();
    });
  }

  // Its kernel acknowledges our beats: it stands still, and will read them all. If another daemon
  // may have taken over, that is not a reason to wait.
  bool stays_with_the_daemon(Clock::time_point now) {
    const auto kernel = link_->peer_kernel();
    if (!kernel || addresses_.size() > 1 || now - last_received_ >= kStandstillMax) return false;
    const Milliseconds patience =
        std::max(silence_max_ / 2, rendezvous::kRoundTripsInSilence * kernel->round_trip);
    if (kernel->silent_for >= patience) return false;
    if (!std::exchange(reported_waiting_, true)) {
      log::warning(silence_text() + ", but its host does; waiting for it");
    }
    return true;
  }

  std::string address_text() const {
    const DaemonAddress& daemon = addresses_[which_];
    return daemon.host + ":" + std::to_string(daemon.port);
  }

  std::string silence_text() const {
    return address_text() + " has not answered within " + std::to_string(silence_max_.count()) +
           " ms";
  }

  boost::asio::io_context& loop_;
  RemoteLinkOptions options_;
  std::vector<DaemonAddress> addresses_;
  std::size_t which_ = 0;  // Of addresses_.
  Handlers handlers_;
  std::shared_ptr<void> attempt_;
  std::shared_ptr<Link> link_;
  boost::asio::steady_timer retry_;
  boost::asio::steady_timer silence_;
  Milliseconds silence_max_ = options_.silence_max;
  Milliseconds pause_ = kRetryFirst;
  std::minstd_rand random_{static_cast<unsigned>(random_number())};
  Clock::time_point last_received_{};
  std::string release_;   // Of the daemon's ddprun; empty: not known.
  bool refused_ = false;  // By the daemon: another connection would change nothing.
  bool reported_unreadable_ = false;
  bool greeted_ = false;           // The daemon has answered on this link.
  bool silent_ = false;            // That is why we closed it.
  bool reported_waiting_ = false;  // It was logged that we wait for a daemon that stands still.
  std::function<void()> on_closed_;
};

}  // namespace

std::unique_ptr<DaemonLink> remote_link(boost::asio::io_context& loop, RemoteLinkOptions options) {
  return std::make_unique<RemoteLink>(loop, std::move(options));
}

}  // namespace ddprun::agent
