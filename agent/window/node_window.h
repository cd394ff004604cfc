#pragma once
// What an agent answers to those that watch the run on its machine (ddprunctl top, logs, stacks):
// where the run stands, which processes its workers are, and what these write. Owned by Agent.

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "agent/output/output.h"
#include "agent/window/window.h"
#include "rendezvous/run/status.h"

namespace ddprun::agent {

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
  std::function<void()> refresh;                   // Reports what is known, if that is old.
  std::function<rendezvous::DaemonStatus()> runs;  // As the daemon knows them, or this node alone.

  // At this path, from now on. A failure is logged.
  void open(const std::string& path);

 private:
  void answer(const std::string& question, Window::Reply reply);
  std::string workers_text() const;
  std::string tails_text(const nlohmann::json& asked) const;

  boost::asio::io_context& loop_;
  const Output& output_;
  std::unique_ptr<Window> window_;
};

}  // namespace ddprun::agent
