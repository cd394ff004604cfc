#pragma once
// The requests of `ddprun doctor --hosts` to its far ends, and their answers. Pure.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "launcher/doctor/node_facts.h"

namespace ddprun::launcher {

// A request of the doctor to a far end, and the lines that answer it.
//
//   facts                                all facts of the node
//   clock                                the time of day
//   listen NONCE PORT                    serve links on any port, and on PORT if that is not 0
//   meet HOST PORT NONCE                 connect to the endpoint
//   reach NAME HOST PORT NONCE           connect to a node
//   send NAME HOST PORT NONCE            connect to a node, and send for a while
struct DoctorRequest {
  enum class Kind { kFacts, kClock, kListen, kMeet, kReach, kSend };
  Kind kind = Kind::kFacts;
  std::string name = {};  // kReach, kSend: of the peer.
  std::string host = {};
  std::uint16_t port = 0;
  std::string nonce = {};
  bool operator==(const DoctorRequest&) const = default;
};

std::string encode(const DoctorRequest& request);
std::optional<DoctorRequest> decode_request(std::string_view text);

inline constexpr std::string_view kAnswer = "ddprun-doctor ";  // Before the facts of an answer.

// The facts of a line that is an answer; nothing: it is another program's.
std::optional<Result<doctor::Facts>> answer_in(std::string_view line);

}  // namespace ddprun::launcher
