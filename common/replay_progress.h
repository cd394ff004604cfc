#pragma once
// By which `ddprun replay` learns whether the program's job has begun the step: the variable names
// an empty file, into which the job writes something then (worker_sdk/job/job_replay.cc).

namespace ddprun {

inline constexpr const char* kReplayProgressVariable = "DDPRUN_REPLAY_PROGRESS";

}  // namespace ddprun
