#pragma once
// Whether the time that a batch system has granted is over: it then ends the processes of the job
// by SIGTERM and, a while later, by SIGKILL, without notifying them. Used by the agent, for signals
// that reach it and for workers that signals have ended.

#include <cstdint>
#include <string>

namespace ddprun::agent {

// `end`: the value of SLURM_JOB_END_TIME, seconds since 1970; `job`: of SLURM_JOB_ID. A half
// sentence if `now`, in the same seconds, is at that end or within what Slurm takes to act on it;
// else empty. A job may be granted more time later, which its variables do not show: long after
// that end nothing is known.
std::string time_limit_over(const std::string& end, const std::string& job, std::int64_t now);

// By this process's own environment and clock, for a signal that batch systems use.
std::string time_limit_over(int signal);

}  // namespace ddprun::agent
