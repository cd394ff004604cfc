#pragma once
// The options of `ddprun slurm`: their table, and what they become. Pure.

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/options/option.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

inline constexpr std::string_view kSlurmCommand = "slurm";  // ddprun's first argument.
inline constexpr std::string_view kThisHost = "this-host";  // For --daemon-on.

// What --join takes: the number of a job, or the name of a run whose daemon is outside Slurm
// ("login1-c0ffee").
bool is_job_number(std::string_view text);
bool is_run_name(std::string_view text);

struct SlurmOptions {
  std::optional<NodeRange> nodes;   // MIN:MAX, or one number for both. Absent: see `nodes_text`.
  std::string nodes_text;           // As given: sbatch understands more, such as 2-4.
  std::string join;                 // A number or a name, whose run is joined; empty: a new run.
  std::string daemon_on;            // A partition, or kThisHost; empty: it is on the first node.
  bool dry_run = false;             // Print what would be submitted.
  std::vector<std::string> sbatch;  // All other words before "--": options of sbatch.
  std::vector<std::string> argv;    // ddprun's options, PROGRAM and its arguments.

  bool has_daemon_here() const { return daemon_on == kThisHost; }
  bool is_elastic() const {
    return !join.empty() || !daemon_on.empty() || (nodes && nodes->min < nodes->max);
  }
};

// The table; for completion.
std::span<const Option> slurm_options();

using SlurmOutcome = std::variant<SlurmOptions, PrintAndExit>;

// `argv` begins with "slurm". A failure is Errc::kBadOption and its context one sentence.
// What stands behind "--" is checked as ddprun itself would check it.
Result<SlurmOutcome> parse_slurm(int argc, const char* const* argv, const Environment& environment);

}  // namespace ddprun::launcher
