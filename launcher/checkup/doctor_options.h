#pragma once
// What a user can tell `ddprun doctor`. doctor_options.cc is its only file that knows CLI11. Pure.

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "launcher/options/options.h"

namespace ddprun::launcher {

inline constexpr std::string_view kDoctorWord = "doctor";  // ddprun's first argument.

enum class Colour { kAuto, kAlways, kNever };

struct DoctorOptions {
  std::vector<HostEntry> hosts;  // Empty: this machine alone.
  std::vector<std::string> ssh = {"ssh"};
  std::vector<std::string> env;  // Names of variables to carry to the hosts.
  WorkerCount workers{.kind = WorkerCount::Kind::kAuto};
  std::optional<std::uint16_t> port;  // Where nodes meet; absent: as a run would choose it.
  std::string program;                // Empty: none.
  Colour colour = Colour::kAuto;
  bool ascii = false;
  bool json = false;
  bool verbose = false;
  bool far_end = false;  // One of --hosts, started by another doctor.
};

using DoctorOutcome = std::variant<DoctorOptions, PrintAndExit>;

// `argv` begins with "doctor". A failure is Errc::kBadOption and its context one sentence.
Result<DoctorOutcome> parse_doctor(int argc, const char* const* argv);

// The command line of a far end.
std::vector<std::string> far_end_argv(const DoctorOptions& options);

}  // namespace ddprun::launcher
