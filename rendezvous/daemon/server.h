#pragma once
// The daemon's I/O: connections and timers in, the Coordinator's decisions out, and a RecordLog in
// between. Called by service.cc.

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "rendezvous/coordinator/gate.h"
#include "rendezvous/journal/journal.h"
#include "rendezvous/journal/run_history.h"
#include "rendezvous/net/listener.h"
#include "rendezvous/net/turnstile.h"
#include "rendezvous/relay/relay_thread.h"
#include "rendezvous/store/store_server.h"

namespace ddprun::rendezvous {

// The daemon's port for unmodified `torchrun --rdzv-backend c10d` agents: a store that outlives
// each of them. It has no token, because torchrun has no way to give one, so that it is open to
// every client that can connect. What the agents keep in it is never read by the daemon. Called by
// main.cc.
struct C10dOptions {
  std::optional<std::uint16_t> port;  // None: not offered; 0: any.
  std::string address = "127.0.0.1";
  std::vector<std::string> allow;  // Numeric; empty: every host that reaches `address`.
};

// Null if it is not offered. Logs where it listens and which clients it admits.
Result<std::unique_ptr<StoreServer>> open_c10d_port(boost::asio::io_context& io,
                                                    const C10dOptions& options);

struct ServerOptions {
  ListenOptions listen;
  // A link that has sent nothing by then belongs neither to a node nor to an operator.
  Milliseconds hello_timeout{15'000};
  bool end_when_over = false;  // End once every run has ended and all links are closed.
  std::string only_run = {};   // Agents of other runs are turned away; empty: none is.
  bool log_news = false;       // Log what happens in the runs; else only when verbose.
  int store_fd = -1;           // To the agent that hosts the store, see StoreHandOver; -1: none.
};

// What a daemon knows of the time before it. Without a log nothing outlives this process.
struct Memory {
  std::unique_ptr<RecordLog> log = nullptr;
  Journal journal = {};
  std::unique_ptr<RunArchive> history = nullptr;  // Null: none is kept.
};

class Server {
 public:
  // Replays the journal and opens the port. The server runs on `io` until on_over is called.
  static Result<std::unique_ptr<Server>> open(boost::asio::io_context& io, ServerOptions options,
                                              Memory memory, std::function<void()> on_over);

  std::uint16_t port() const { return listener_->port(); }
  std::string status() const;  // One line per run.
  // Why nothing is being decided, as a sentence.
  std::optional<std::string> trouble() const;

  const Coordinator& coordinator() const { return gate_.coordinator(); }
  const Listener& listener() const { return *listener_; }
  const RelayThread& relay() const { return relay_; }
  const RefusalCounts& refused() const { return refused_; }  // For hellos and frames.
  bool has_journal() const { return log_ != nullptr; }
  bool ending() const { return ending_ != Ending::kNo; }

  // Ends every run, with the signal in its verdict, and then calls on_over.
  void shut_down(int signal);

  // Closes all links and calls on_over. No run ends by that: the journal has all that the next
  // daemon needs, and agents search for that daemon while their workers run on. `for_good`: no
  // daemon continues this journal, and the agents are notified of that.
  void leave(bool for_good = false);

 private:
  enum class Ending {
    kNo,
    kShutDown,  // shut_down(): links are closed by the agents, which have received the verdict.
    kLeave,     // leave(): a link that closes means nothing for its node.
  };

  struct Linked {
    std::shared_ptr<Link> link;
    bool has_sent = false;  // A message has arrived.
  };

  // A client of the store from an address at which there is no node yet.
  struct Stranger {
    TimePoint until;
    std::string peer;
    UniqueFd fd;
  };

  Server(boost::asio::io_context& io, ServerOptions options, Memory memory,
         std::function<void()> on_over);

  void replay(const Journal& journal);
  void recall();
  void keep_ended();
  void accept(const std::shared_ptr<Link>& link);
  void hand_over(AcceptedSocket client);
  void refuse_stranger();
  bool may_decide() const;
  void carry_out(Gate::Work work);
  void carry_out(LinkAction& action);
  void hang_up(const Hangup& hangup);
  void join(const Bridge& bridge);
  void log_news();
  void watch_own_time();
  void wait_until(TimePoint when);
  void tick();
  void check_links();
  void arm();
  void hang_up_on_the_silent();
  void end();

  boost::asio::io_context& io_;
  ServerOptions options_;
  std::function<void()> on_over_;
  std::unique_ptr<Listener> listener_;
  std::unique_ptr<StoreHandOver> store_;
  RelayThread relay_;
  boost::asio::steady_timer timer_;
  std::unique_ptr<RecordLog> log_;
  Gate gate_;
  std::unique_ptr<RunArchive> history_;
  std::unordered_map<LinkId, Linked> links_;
  LinkId next_link_ = 1;
  std::deque<std::pair<TimePoint, LinkId>>
      silent_;                      // When each must have sent a message; some have.
  std::deque<Stranger> strangers_;  // The oldest first.
  RefusalCounts refused_;
  Complaints complaints_;
  Complaints about_nodes_{50, Milliseconds(1000)};
  bool armed_ = false;        // timer_ runs.
  bool catching_up_ = false;  // It runs for what has come while we stood still.
  Ending ending_ = Ending::kNo;
};

}  // namespace ddprun::rendezvous
