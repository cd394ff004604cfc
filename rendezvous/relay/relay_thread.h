#pragma once
// The thread that carries the bytes of relayed streams in a process whose own loop must answer
// heartbeats: the daemon's, and each agent's. It begins with the first stream. Nothing is logged on
// it: a line of the agent first takes its status line off the terminal.

#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <thread>

#include "common/error.h"
#include "common/system/peer_user.h"
#include "rendezvous/net/connect.h"
#include "rendezvous/protocol/wire_request.h"
#include "rendezvous/relay/relay_entry.h"

namespace ddprun::rendezvous {

class RelayThread {
 public:
  // `for_all_users`: workers may be other users' than this process.
  explicit RelayThread(bool for_all_users = false) : for_all_users_(for_all_users) {}
  ~RelayThread();  // Ends all streams.
  RelayThread(const RelayThread&) = delete;
  RelayThread& operator=(const RelayThread&) = delete;

  // Of the daemon: both ends of a stream are here. `slot` is let go when the stream ends.
  void join(Released dialer, Released agent, std::shared_ptr<void> slot);

  // Of an agent, whose other node's Relay this answers: connects to `port` of this node, if it is
  // open to others, and to the daemon, and joins the two.
  void meet(ConnectOptions daemon, Meet meet, std::uint16_t port);

  // Of an agent: other nodes may dial this port from now on, and no longer the last one of the same
  // purpose.
  void open(std::string purpose, std::string address, std::uint16_t port);
  void shut(std::string purpose);

  // Of an agent: serves this node's workers at a port of loopback, which is returned. Their streams
  // go to the daemon that was named last.
  Result<std::uint16_t> serve_workers(std::string run_id, std::string nonce);
  void use_daemon(ConnectOptions daemon);

  // Of an agent that serves workers: what this user's processes send to the returned port of
  // loopback goes to `port` of the node, until the next call or stop_forwarding(). Streams that
  // exist then go on. A process that comes while the daemon restarts waits for up to a minute.
  Result<std::uint16_t> forward(NodeId node, std::uint16_t port);
  void stop_forwarding();

  std::uint64_t bytes() const { return bytes_; }  // That were carried, in both directions.

 private:
  Result<void> begin();
  bool admits(int client);
  // The client reads "ok" before the stream's bytes, or else why there is none.
  void dial(const DialRequest& request, UniqueFd client);
  // The client does not know of the stream: it waits for it. `began`: when it came.
  void lead(const DialRequest& request, std::shared_ptr<UniqueFd> client, TimePoint began);
  // `first`: what the client reads before the stream's bytes.
  void carry(Released stream, UniqueFd client, const std::string& first);

  const bool for_all_users_;
  boost::asio::io_context io_{1};
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      io_.get_executor()};
  // Used on the thread only.
  OpenPorts ports_;
  std::map<std::string, std::shared_ptr<void>> opened_;  // By purpose.
  std::unique_ptr<RelayEntry> entry_;
  std::shared_ptr<AcceptLoop> forwards_;
  PeerUsers users_;
  ConnectOptions daemon_;
  std::string run_id_;
  std::atomic<std::uint64_t> bytes_{0};
  std::thread thread_;
};

}  // namespace ddprun::rendezvous
