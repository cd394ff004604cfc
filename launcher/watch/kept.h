#pragma once
// `ddprunctl preload`: the fork servers that runs of this user have left on this machine
// (--preload-keep), and their end. Called by ctl_main.cc.

#include <cstdint>
#include <string>
#include <vector>

#include "common/error.h"
#include "launcher/watch/top_screen.h"

namespace ddprun::launcher {

struct KeptRow {
  int holder = 0;  // A process.
  std::string program;
  int modules = 0;
  std::uint64_t bytes = 0;
  std::int64_t left_s = 0;
  bool in_use = false;
};

// A table. Pure.
std::string kept_text(const std::vector<KeptRow>& rows, const ScreenStyle& style);

Result<std::string> kept_here(const ScreenStyle& style);

// Ends the one that the process `which` holds, or "all"; returns what to print.
Result<std::string> end_kept(const std::string& which);

}  // namespace ddprun::launcher
