#pragma once
// The options of `ddprun doctor`: their table, and what they become. Pure.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/options/option.h"
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
  MemoryFolder memory_folder;         // Of 0 bytes: none.
  Colour colour = Colour::kAuto;
  bool ascii = false;
  bool json = false;
  bool verbose = false;
  bool far_end = false;  // A node of --hosts, started by another doctor.
};

// The table; for completion.
std::span<const Option> doctor_options();

using DoctorOutcome = std::variant<DoctorOptions, PrintAndExit>;

// `argv` begins with "doctor". A failure is Errc::kBadOption and its context one sentence.
Result<DoctorOutcome> parse_doctor(int argc, const char* const* argv);

// The command line of a far end.
std::vector<std::string> far_end_argv(const DoctorOptions& options);

}  // namespace ddprun::launcher
