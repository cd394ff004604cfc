#pragma once
// What PyTorch's flight recorder has of the ranks of a node, as each has said it of itself
// (python/startup/ddprun_watch/_recorder.py), and what follows from that: which rank is missing in
// a collective, or is in another one. Pure. Used by FlightRecorders and by Agent.

#include <boost/asio/io_context.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/system/descriptors.h"
#include "common/time.h"

namespace ddprun::agent {

constexpr std::size_t kFlightBytesMax = std::size_t{256} << 10;  // A longer record is refused.

struct FlightCall {
  std::uint64_t number = 0;  // Within its group, from 1 on.
  std::string op;            // "all_reduce"
  std::string of;            // "[1000] Float"
  bool open = false;         // It has not ended.
  bool operator==(const FlightCall&) const = default;
};
struct FlightGroup {
  std::string name;               // torch's, which is the same on all ranks; "0": the whole job.
  std::vector<FlightCall> calls;  // The latest, oldest first.
  bool operator==(const FlightGroup&) const = default;
};
struct FlightRecord {
  std::string where;  // "train.py:27 in step"
  std::vector<FlightGroup> groups;
  bool ended = false;  // Its process has left this behind.
  bool operator==(const FlightRecord&) const = default;
};

// The text is a worker's: anything but a record within limits is Errc::kBadMessage. Names and
// places come without control characters.
Result<FlightRecord> decode_flight_record(std::string_view text);

// By rank; nullopt: it has not answered.
using FlightRecords = std::map<int, std::optional<FlightRecord>>;

// One sentence about the first of these that holds: two ranks disagree about a call, a rank has not
// come to a call in which another one is, all are in the same call; then who did not answer. Empty
// where nothing is known.
std::string flight_text(const FlightRecords& records);

// Asks the workers of this node where they are: programs that use PyTorch under --on-stall listen
// at a socket each (python/startup/ddprun_watch/_door.py). Owned by Agent.
class FlightRecorders {
 public:
  // `stem`: what the paths of the sockets begin with, in a folder that only its user may open;
  // empty: there are none.
  FlightRecorders(boost::asio::io_context& loop, const std::string& stem);
  ~FlightRecorders();
  FlightRecorders(const FlightRecorders&) = delete;
  FlightRecorders& operator=(const FlightRecorders&) = delete;

  // For the environment of a worker that is about to start; removes what its predecessor has left.
  // `dump`: the file that gets all that is known whenever the worker is asked; empty: none.
  std::vector<std::string> variables(int local_rank, const std::string& dump);

  // By local rank, those that listen, or have left an answer behind as they ended.
  using Answers = std::map<int, std::optional<FlightRecord>>;
  using Done = std::function<void(Answers)>;
  // Done is called soon where nobody listens, else after `limit` at the latest; never from here,
  // and not once this object is gone.
  void ask(int workers, Duration limit, Done done);

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
