#include "agent/node/verdict_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <iterator>

#include "agent/process/cgroup.h"
#include "common/exit_status.h"
#include "common/system/log.h"
#include "common/system/user_file.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::agent {

rendezvous::Verdict verdict_or(const std::optional<rendezvous::Verdict>& verdict, int status,
                               const std::string& complaint) {
  if (verdict) return *verdict;
  const bool never_met = status == kExitRendezvous || status == kExitNeverReady;
  return {.kind = never_met ? rendezvous::Verdict::Kind::kTimedOut
                            : rendezvous::Verdict::Kind::kInterrupted,
          .exit_code = status,
          .text = complaint};
}

void write_verdict_files(const std::vector<std::string>& paths, const rendezvous::Verdict& verdict,
                         const std::string& run_id) {
  const std::string text = rendezvous::verdict_json(verdict, run_id, std::time(nullptr));
  for (const std::string& path : paths) {
    const auto written = write_user_file(path, text);
    if (!written) log::warning("the verdict is not in its file: " + to_string(written.error()));
  }
}

std::vector<std::string> note_interruption(const std::vector<std::string>& paths, int signal,
                                           int exit_code, const std::string& run_id) {
  std::vector<std::string> noted;
  std::copy_if(paths.begin(), paths.end(), std::back_inserter(noted), replaces_user_file);
  const char* name = ::sigabbrev_np(signal);
  write_verdict_files(noted,
                      {.kind = rendezvous::Verdict::Kind::kInterrupted,
                       .exit_code = exit_code,
                       .text = std::string("interrupted by SIG") + (name ? name : "?") +
                               "; this was written as its workers were being stopped, and "
                               "nothing has been written since"},
                      run_id);
  return noted;
}

namespace {

Fault fault_of(int error) {
  switch (error) {
    case EMFILE:
    case ENFILE: return Fault::kNoDescriptors;
    case EAGAIN: return Fault::kNoProcesses;
    case ENOMEM: return Fault::kNoMemory;
    default: return Fault::kCannotStart;
  }
}

}  // namespace

WorkerDeath start_failure(const Failure& why, const Limits& limits, int workers,
                          std::optional<std::int64_t> tasks) {
  const bool of_the_system = why.code.category() == std::system_category();
  const int error = of_the_system ? why.code.value() : 0;
  WorkerDeath death;
  death.fault = fault_of(error);
  death.exit_code = death.fault == Fault::kCannotStart ? kExitCannotStart : kExitFailed;
  const std::string by_cgroup = too_few_tasks(error, limits, tasks);
  death.detail =
      to_string(why) + (by_cgroup.empty() ? what_is_short(error, limits, workers) : by_cgroup);
  return death;
}

}  // namespace ddprun::agent
