#include "agent/health/time_limit.h"

#include <charconv>
#include <csignal>
#include <ctime>

#include "common/system/variable.h"

namespace ddprun::agent {

std::string time_limit_over(const std::string& end, const std::string& job, std::int64_t now) {
  // Clocks of two machines may differ; Slurm checks twice per minute, and waits half a minute
  // between the two signals.
  constexpr std::int64_t kEarly = 5, kLate = 150;
  std::int64_t at = 0;
  const auto [rest, error] = std::from_chars(end.data(), end.data() + end.size(), at);
  if (error != std::errc() || rest != end.data() + end.size() || at <= 0) return "";
  if (now < at - kEarly || now > at + kLate) return "";
  return "the time limit of Slurm job " + (job.empty() ? "?" : job) + " is reached";
}

std::string time_limit_over(int signal) {
  if (signal != SIGTERM && signal != SIGKILL && signal != SIGXCPU) return "";
  return time_limit_over(environment_variable("SLURM_JOB_END_TIME"),
                         environment_variable("SLURM_JOB_ID"), std::time(nullptr));
}

}  // namespace ddprun::agent
