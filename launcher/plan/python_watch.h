#pragma once
// --report, --report-html and --on-stall for programs that train with PyTorch: Python in workers
// finds a sitecustomize.py of ours first (python/startup), which watches the training loop. Pure.
// Called by launch.cc.

#include <string>

#include "launcher/options/options.h"

namespace ddprun::launcher {

constexpr const char* kPythonWatchVariable = "DDPRUN_WATCH";  // What is watched; 0: nothing.
constexpr const char* kPythonPathVariable = "PYTHONPATH";
// Among what is installed with ddprun. A folder of that name says nothing: beside the programs of a
// virtual environment, `python` is its interpreter.
constexpr const char* kPythonStartupFile = "python/sitecustomize.py";

struct PythonWatch {
  std::string watch = {};        // kPythonWatchVariable; empty: nothing is to be changed.
  std::string python_path = {};  // kPythonPathVariable, with our folder first.
  bool may_ask = false;          // Agents ask ranks where they are.
};

// `folder`: that of our sitecustomize.py, empty if there is none.
PythonWatch plan_python_watch(const Options& options, const Environment& environment,
                              const std::string& folder);

}  // namespace ddprun::launcher
