#pragma once
// What PyTorch's flight recorder has of the ranks of a node, as reported by each rank
// (python/startup/ddprun_watch/_recorder.py), and what follows from that: which rank is missing in
// a collective, or is in another one. Pure. Used by FlightRecorders and by Agent.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

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
// come to a call in which another one is, all are in the same call; then the ranks that did not
// answer. Empty if nothing is known.
std::string flight_text(const FlightRecords& records);

}  // namespace ddprun::agent
