#pragma once
// The options of `ddprun doctor`, and its requests to far ends. doctor_options.cc alone uses CLI11.
// Pure.

#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "launcher/doctor/node_facts.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

inline constexpr std::string_view kDoctorCommand = "doctor";  // ddprun's first argument.

enum class Colour { kAuto, kAlways, kNever };

struct DoctorOptions {
  std::vector<HostEntry> hosts;  // Empty: this machine alone.
  std::vector<std::string> ssh = {"ssh"};
  std::vector<std::string> env;  // Names of variables to carry to the hosts.
  WorkerCount workers{.kind = WorkerCount::Kind::kAuto};
  std::optional<std::uint16_t> port;  // The port for the meeting; absent: chosen as in a run.
  std::string program;                // Empty: none.
  Colour colour = Colour::kAuto;
  bool ascii = false;
  bool json = false;
  bool verbose = false;
  bool far_end = false;  // A node of --hosts, started by another doctor.
};

using DoctorOutcome = std::variant<DoctorOptions, PrintAndExit>;

// `argv` begins with "doctor". A failure is Errc::kBadOption and its context one sentence.
Result<DoctorOutcome> parse_doctor(int argc, const char* const* argv);

// The command line of a far end.
std::vector<std::string> far_end_argv(const DoctorOptions& options);

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
