#pragma once
// What an agent answers to clients that watch the run on its machine (ddprunctl top, logs, stacks):
// where the run stands, which processes its workers are, and what these write. Owned by Agent.

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>

#include "agent/output/output.h"
#include "agent/window/window.h"
#include "rendezvous/protocol/wire.h"
#include "rendezvous/run/status.h"

namespace ddprun::agent {

// What is to be remembered of a run once its agents are gone: how it ended, and what its workers
// wrote last. The launcher takes it into the history (ddprunctl history). Called by Agent at its
// end.

// Of the whole run; the agent that speaks for it knows.
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
