#pragma once
// The files installed beside this program: its Python environment, the NCCL plugin, the Python that
// watches workers.

#include <string>

#include "agent/node/command.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// The interpreter of the Python environment in which this ddprun is installed. Called by decide.cc
// if PYTHON_EXEC does not name one.

// The python3 in `bin`, the folder of ddprun's own program, if that folder is of a virtual or conda
// environment, so that such an environment need not be activated. Else "": python3 of PATH is used,
// as for folders that serve all users, such as /usr/bin.
std::string own_python(const std::string& bin, const agent::FileProbe& files);

// DDPRUN_NCCL_PROFILE: NCCL in all workers loads worker_sdk/nccl_profiler, which the launcher names
// in NCCL_PROFILER_PLUGIN. Pure. Called by main.cc.
constexpr const char* kNcclPluginVariable = "NCCL_PROFILER_PLUGIN";
constexpr const char* kNcclPluginFile = "libddprun-nccl-profiler.so";

struct NcclProfilePlan {
  std::string plugin = {};   // The value for kNcclPluginVariable; empty: unchanged.
  std::string warning = {};  // Why no profile is made.
};

// `plugin`: our file's path, empty if there is none.
NcclProfilePlan plan_nccl_profile(const Environment& environment, const std::string& plugin);

// --report, --report-html and --on-stall for programs that train with PyTorch, and --preload:
// Python in workers finds a sitecustomize.py of ours first (python/startup), which watches the
// training loop, or is the fork server. Pure. Called by launch.cc.
constexpr const char* kPythonWatchVariable = "DDPRUN_WATCH";  // Lists what is watched; 0: nothing.
constexpr const char* kPythonPathVariable = "PYTHONPATH";
// A path among the files installed with ddprun. A folder named `python` would prove nothing: beside
// the programs of a virtual environment, `python` is its interpreter.
constexpr const char* kPythonStartupFile = "python/sitecustomize.py";

struct PythonWatch {
  std::string watch = {};        // kPythonWatchVariable; empty: unchanged.
  std::string python_path = {};  // kPythonPathVariable, with our folder first.
  bool may_query = false;        // Agents may query ranks for their stacks.
  std::string preload = {};      // AgentOptions::preload.
};

// `folder`: that of our sitecustomize.py, empty if there is none.
PythonWatch plan_python_watch(const Options& options, const Environment& environment,
                              const std::string& folder);

}  // namespace ddprun::launcher
