#pragma once
// What an agent answers to clients that watch the run on its machine (ddprunctl top, logs, stacks):
// where the run stands, which processes its workers are, and what these write. Owned by Agent.

#include <boost/asio/io_context.hpp>
#include <boost/asio/local/stream_protocol.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>

#include "agent/output/output.h"
#include "common/error.h"
#include "rendezvous/protocol/wire.h"
#include "rendezvous/run/status.h"

namespace ddprun::agent {

// An object as one line of plain ASCII. Used for output of workers that an agent shows: workers
// write any bytes; JSON text may not.
inline std::string json_line(const nlohmann::json& object) {
  return object.dump(-1, ' ', /*ensure_ascii=*/true, nlohmann::json::error_handler_t::replace);
}

// A socket in the run's temporary folder, which only its user can open: for queries by ddprunctl on
// this machine to a running agent, without a token. One question a connection, a line; its answer
// ends with the connection.
class Window {
 public:
  using Reply = std::function<void(std::string)>;
  // May call its reply later, once, or drop it.
  using Answer = std::function<void(const std::string& question, Reply reply)>;

  static Result<std::unique_ptr<Window>> open(boost::asio::io_context& loop,
                                              const std::string& path, Answer answer);
  Window(const Window&) = delete;
  Window& operator=(const Window&) = delete;
  ~Window();

 private:
  class Visitor;
  using Socket = boost::asio::local::stream_protocol::socket;

  Window(boost::asio::io_context& loop, Answer answer);
  void accept();

  boost::asio::local::stream_protocol::acceptor acceptor_;
  boost::asio::steady_timer pause_;
  Answer answer_;
  std::set<std::weak_ptr<Visitor>, std::owner_less<>> visitors_;
  std::shared_ptr<const bool> alive_ = std::make_shared<const bool>(true);
};

// What is to be remembered of a run once its agents are gone: how it ended, and what its workers
// wrote last. The launcher takes it into the history (ddprunctl history). Called by Agent at its
// end. Of the whole run; the agent that speaks for it knows.
struct RunEnding {
  std::string run_id;
  rendezvous::Verdict verdict;
  std::optional<rendezvous::Seat> seat;  // The last that the node had.
  std::string account;                   // As JSON; empty: none came.
};

// `ranks`: by local rank, of all workers that there were; -1: it never had one.
void write_ending(const std::string& path, const Output& output, const std::map<int, int>& ranks,
                  const std::optional<RunEnding>& of_run);

class NodeWindow {
 public:
  struct Workers {
    std::string run_id;
    std::string host;
    int world_size = 0;        // 0: there was no round yet.
    std::map<int, int> pids;   // By local rank, of those that live.
    std::map<int, int> ranks;  // By local rank, of all that there were; -1: it has none yet.
  };

  NodeWindow(boost::asio::io_context& loop, const Output& output);

  std::function<Workers()> workers;
  std::function<void()> refresh;  // Reports what is known, if that is old.
  // Requests a bundle of one of the workers: of its rank, or why there is none.
  std::function<Result<int>()> capture;
  std::function<rendezvous::DaemonStatus()> runs;  // As the daemon knows them, or this node alone.

  // At this path, from now on. A failure is logged.
  void open(const std::string& path);

 private:
  void answer(const std::string& question, Window::Reply reply);
  std::string workers_text() const;
  std::string tails_text(const nlohmann::json& question_json) const;

  boost::asio::io_context& loop_;
  const Output& output_;
  std::unique_ptr<Window> window_;
};

}  // namespace ddprun::agent
