#pragma once
// The messages between an agent and a worker that can change its seat, and their JSON form. One
// datagram per message, on a pair of unix sockets (SOCK_SEQPACKET); the worker inherits its end and
// finds its number in the environment. A worker that never sends Ready is a plain one: it is
// stopped and started again when the membership changes. Pure: bytes in, messages out.
//
//   worker                                   agent
//     Ready ───────────────────────────────▶   the worker can be seated without a new process
//     ◀─────────────────────────────── Seated   its place in a round; again at every change
//     ◀──────────────────────── Fence | Change   at once | at the next boundary between steps
//     LeftRound ───────────────────────────▶   no operation of that round follows
//     ◀─────────────────────────────── Seated
//     Resumed ─────────────────────────────▶   for people and counters: what the change has cost
//
// Receiving a message twice changes nothing.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "common/error.h"
#include "common/worker_death.h"

namespace ddprun::worker_link {

constexpr int kVersion = 1;
constexpr const char* kVariable = "DDPRUN_WORKER_LINK";  // The number of the worker's descriptor.
constexpr std::size_t kMessageBytesMax = 8192;
constexpr std::size_t kTextBytesMax =
    1024;  // Longer texts are cut when encoded, refused when read.

// From a worker. kName is what a message calls itself in its field "type".
struct Ready {
  static constexpr const char* kName = "ready";
  int version = kVersion;
  int min_world = 0;  // The job computes in no round with fewer ranks.
  bool operator==(const Ready&) const = default;
};
struct LeftRound {
  static constexpr const char* kName = "left";
  int round = 0;
  std::int64_t step = 0;  // The number of steps that it has committed.
  bool operator==(const LeftRound&) const = default;
};
struct Resumed {
  static constexpr const char* kName = "resumed";
  int round = 0;
  std::int64_t step = 0;      // From which it goes on.
  std::int64_t repeated = 0;  // Steps that were begun before the change and run again.
  std::int64_t lost_us = 0;   // Microseconds from the last committed step to going on.
  bool operator==(const Resumed&) const = default;
};
using WorkerMessage = std::variant<Ready, LeftRound, Resumed>;

// From its agent.
struct Seated {
  static constexpr const char* kName = "seated";
  int round = 0;
  int restart_count = 0;
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;        // Stays with the process.
  int local_world_size = 1;  // Workers of this node in this round.
  int group_rank = 0;
  int group_world_size = 1;
  std::string master_address;
  int master_port = 0;
  std::string skip{};  // Pieces of steps that no rank may compute, separated by "; ".
  LostWork lost_work{};  // In the round before.
  bool operator==(const Seated&) const = default;
};
struct Fence {  // The round is over: a worker in one of its operations leaves it with an error.
  static constexpr const char* kName = "fence";
  int round = 0;
  int lost_rank = -1;  // The rank that ended and so caused it; -1: none.
  std::string why;
  bool operator==(const Fence&) const = default;
};
struct Change {  // The membership is to change: leave the round where all ranks leave it.
  static constexpr const char* kName = "change";
  int round = 0;
  std::string why;
  bool operator==(const Change&) const = default;
};
struct Refused {  // The agent cannot work with this worker's version, and why.
  static constexpr const char* kName = "refused";
  std::string why;
  bool operator==(const Refused&) const = default;
};
using AgentMessage = std::variant<Seated, Fence, Change, Refused>;

std::string encode(const WorkerMessage& message);
std::string encode(const AgentMessage& message);

// Anything but a well-formed message within limits is Errc::kBadMessage, with the name of the
// field.
Result<WorkerMessage> decode_worker_message(std::string_view datagram);
Result<AgentMessage> decode_agent_message(std::string_view datagram);

}  // namespace ddprun::worker_link
