#pragma once
// An NcclProfile as a table for people, and as JSON for programs and trace viewers. Pure. Used by
// nccl_profiler.cc.

#include <string>

#include "worker_sdk/nccl_profiler/nccl_profile.h"

namespace ddprun::worker_sdk {

struct ProfiledRank {
  int rank = 0;
  std::string host;
};

// For each communicator a headline and a row for each kind of call, the longest in all first.
// Every line ends with a line break. Empty if nothing was called.
std::string profile_table(const NcclProfile& profile, const ProfiledRank& who);

// One object that chrome://tracing and Perfetto show ("traceEvents": the last calls, on the host's
// wall clock), with the table's figures as "communicators".
std::string profile_json(const NcclProfile& profile, const ProfiledRank& who);

}  // namespace ddprun::worker_sdk
