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
#include "rendezvous/coordinator.h"
#include "rendezvous/listener.h"

namespace ddprun::rendezvous {

struct ServerOptions {
  ListenOptions listen;
  std::string journal_path;    // Empty: nothing is remembered beyond this process.
  bool end_when_over = false;  // End once every run has ended and everybody has gone.
};

class Server {
 public:
  // Opens the port, locks and replays the journal. The server runs on `io` until on_over is called.
  static Result<std::unique_ptr<Server>> open(boost::asio::io_context& io, ServerOptions options,
                                              std::function<void()> on_over);

  std::uint16_t port() const { return listener_->port(); }
  std::string status() const;  // One line a run.

  // Ends every run, as its verdict says, and then calls on_over.
  void shut_down(int signal);

 private:
  Server(boost::asio::io_context& io, ServerOptions options, std::function<void()> on_over);

  Result<void> open_journal();
  void accept(const std::shared_ptr<Link>& link);
  void carry_out(std::vector<LinkAction> actions);
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
  bool armed_ = false;  // timer_ runs.
  bool shutting_down_ = false;
};

}  // namespace ddprun::rendezvous
