#pragma once
// Finds a shared library that may or may not be on this machine, and reports where it searched.
// Used by gpu_runtime.cc.

#include <string>
#include <vector>

namespace ddprun::worker_sdk {

struct LibraryRequest {
  std::string title;                    // "NCCL"
  std::string variable;                 // Names the file, if set: then nothing else is tried.
  std::vector<std::string> names;       // For the loader's own search path.
  std::vector<std::string> in_folders;  // Patterns below each Python package folder, or absolute.
};

struct Library {
  void* handle = nullptr;  // Never closed: threads of it may outlive us.
  std::string path;
  std::string missing;  // Why there is none.

  void* find(const char* symbol) const;
};

Library open_library(const LibraryRequest& request);

// The folders in which pip and Debian put Python packages here, as glob(7) patterns.
std::vector<std::string> python_package_patterns();

}  // namespace ddprun::worker_sdk
