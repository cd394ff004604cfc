#pragma once
// DDPRUN_NCCL_PROFILE: NCCL in all workers loads worker_sdk/nccl_profiler, which the launcher names
// in NCCL_PROFILER_PLUGIN. Pure. Called by main.cc.

#include <string>

#include "launcher/options/options.h"

namespace ddprun::launcher {

constexpr const char* kNcclPluginVariable = "NCCL_PROFILER_PLUGIN";
constexpr const char* kNcclPluginFile = "libddprun-nccl-profiler.so";

struct NcclProfilePlan {
  std::string plugin = {};   // What kNcclPluginVariable is to be; empty: as it is.
  std::string warning = {};  // Why there will be no profile.
};

// `plugin`: our file's path, empty if there is none.
NcclProfilePlan plan_nccl_profile(const Environment& environment, const std::string& plugin);

}  // namespace ddprun::launcher
