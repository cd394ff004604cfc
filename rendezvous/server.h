#pragma once
// The daemon's I/O: connections and timers in, Coordinator's decisions out, the journal in between.
// Called by rendezvous/main.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <string>
#include <unordered_map>

#include "common/unique_fd.h"
#include "rendezvous/complaints.h"
#include "rendezvous/coordinator.h"
#include "rendezvous/listener.h"

namespace ddprun::rendezvous {

struct ServerOptions {
  ListenOptions listen;
  std::string journal_path;    // Empty: nothing is remembered beyond this process.
  bool end_when_over = false;  // End once every run has ended and everybody has gone.
  bool log_news = false;       // Say what happens in the runs; else only when verbose.
};

class Server {
 public:
  // Opens the port, locks and replays the journal. The server runs on `io` until on_over is called.
  static Result<std::unique_ptr<Server>> open(boost::asio::io_context& io, ServerOptions options,
                                              std::function<void()> on_over);

  std::uint16_t port() const { return listener_->port(); }
  std::string status() const;  // One line a run.

  const Coordinator& coordinator() const { return coordinator_; }
  const Listener& listener() const { return *listener_; }
  const RefusalCounts& refused() const { return refused_; }  // For what links said of themselves.
  bool has_journal() const { return static_cast<bool>(journal_); }
  bool ending() const { return ending_ != Ending::kNo; }

  // Ends every run, as its verdict says, and then calls on_over.
  void shut_down(int signal);

  // Hangs up on everybody and calls on_over. No run ends by that: the journal has all that the next
  // daemon needs, and agents look for it while their workers run on.
  void leave();

 private:
  enum class Ending {
    kNo,
    kShutDown,  // shut_down(): links are closed by the agents, who have heard the verdict.
    kLeave,     // leave(): a link that closes tells nothing about its node.
  };

  Server(boost::asio::io_context& io, ServerOptions options, std::function<void()> on_over);

  Result<void> open_journal();
  void accept(const std::shared_ptr<Link>& link);
  void carry_out(std::vector<LinkAction> actions);
  void hang_up(const Hangup& hangup);
  void log_news();
  void tick();
  void look();
  void arm();

  boost::asio::io_context& io_;
  ServerOptions options_;
  std::function<void()> on_over_;
  std::unique_ptr<Listener> listener_;
  Coordinator coordinator_;
  boost::asio::steady_timer timer_;
  std::unordered_map<LinkId, std::shared_ptr<Link>> links_;
  LinkId next_link_ = 1;
  UniqueFd journal_;
  RefusalCounts refused_;
  Complaints complaints_;
  bool armed_ = false;  // timer_ runs.
  Ending ending_ = Ending::kNo;
};

}  // namespace ddprun::rendezvous
