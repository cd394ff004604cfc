#pragma once
// `ddprun replay`: starts the program of a bundle (common/bundle.h) alone, on this terminal, with
// the job in replay mode (worker_sdk/job/job_replay.cc), which prints what comes of it. What a
// process that crashes cannot print is printed here. Called by main.cc.

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "common/bundle.h"
#include "common/error.h"
#include "common/worker_death.h"
#include "launcher/options/replay_options.h"

namespace ddprun::launcher {

// The program of a bundle, as `ddprun replay` starts it.
struct ReadBundle {
  std::string path;  // Absolute, as the program may run in another folder.
  Bundle bundle;
};

Result<ReadBundle> read_bundle(const std::string& given);

// The bundle's, or that of the options, with what is to be before it.
Result<std::vector<std::string>> command_of(const ReplayOptions& options, const Bundle& bundle);

// For the bundle's own program that of the run, if it is here.
void enter_folder(const ReplayOptions& options, const Bundle& bundle);

// Of this process, which the program inherits.
void set_environment(const ReplayOptions& options, const ReadBundle& read);

// In this process's group, so that a debugger has the terminal. The status of waitpid().
Result<int> run_here(const std::vector<std::string>& command);
WorkerDeath death_of(int status);  // Signal and exit code.

// `argv` begins with "replay". Returns the exit code.
int run_replay(int argc, const char* const* argv);

// For --show. Pure.
std::string bundle_text(const Bundle& bundle);

// `ddprun replay --bisect`: in the bundles of a run the first step that fails when it is computed
// again, or after which the state differs from that of the run. What is bad is assumed to stay bad,
// as NaNs in the weights do.

// Of n > 0 things in order, of which all after the first bad one are bad, that one; n if none is.
// Asks of the first one first, then of the last one, and of none twice.
inline Result<std::size_t> first_bad(std::size_t n,
                                     const std::function<Result<bool>(std::size_t)>& is_bad) {
  const auto first = is_bad(0);
  if (!first) return first.error();
  if (*first || n == 1) return std::size_t{*first ? 0U : 1U};
  const auto last = is_bad(n - 1);
  if (!last) return last.error();
  if (!*last) return n;
  std::size_t good = 0, bad = n - 1;
  while (bad - good > 1) {
    const std::size_t middle = good + (bad - good) / 2;
    const auto found = is_bad(middle);
    if (!found) return found.error();
    (*found ? bad : good) = middle;
  }
  return bad;
}

// Returns the exit code: 0 if a step was found, 1 if there is none.
int run_bisect(const ReplayOptions& options);

}  // namespace ddprun::launcher
