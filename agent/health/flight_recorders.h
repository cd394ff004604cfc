#pragma once
// Queries the workers of this node for where they are: programs that use PyTorch under --on-stall
// listen at a socket each (python/startup/ddprun_watch/_door.py). Owned by Agent.

#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/health/flight_record.h"
#include "common/system/descriptors.h"
#include "common/time.h"

namespace ddprun::agent {

class FlightRecorders {
 public:
  // `stem`: what the paths of the sockets begin with, in a folder that only its user may open;
  // empty: there are none.
  FlightRecorders(boost::asio::io_context& loop, const std::string& stem);
  ~FlightRecorders();
  FlightRecorders(const FlightRecorders&) = delete;
  FlightRecorders& operator=(const FlightRecorders&) = delete;

  // For the environment of a worker that is about to start; removes what its predecessor has left.
  // `dump`: the file that gets all that is known whenever the worker is queried; empty: none.
  std::vector<std::string> variables(int local_rank, const std::string& dump);

  // By local rank, those that listen, or have left an answer behind as they ended.
  using Answers = std::map<int, std::optional<FlightRecord>>;
  using Done = std::function<void(Answers)>;
  // Done is called soon if no worker listens, else after `limit` at the latest; never from within
  // query(), and not once this object is gone.
  void query(int workers, Duration limit, Done done);

 private:
  class Question;
  std::string name_of(int local_rank) const { return stem_ + std::to_string(local_rank); }

  boost::asio::io_context& loop_;
  std::string folder_;
  std::string stem_;
  UniqueFd folder_fd_;
  std::vector<std::weak_ptr<Question>> questions_;
};

}  // namespace ddprun::agent
