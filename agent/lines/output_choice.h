#pragma once
// What a user chooses of the workers' output: where it goes, and behind which prefix. The launcher
// reads it from the command line, Output acts on it.

#include <string>
#include <vector>

#include "agent/lines/line_prefix.h"
#include "agent/lines/log_rotation.h"
#include "agent/lines/stream_map.h"

namespace ddprun::agent {

struct OutputChoice {
  std::string prefix_template = std::string(kDefaultLinePrefix);
  StreamMap redirects = {};                      // -r: to a file and not to the console.
  StreamMap tee = {};                            // -t: to both.
  std::vector<int> local_ranks_filter = {};      // Only these reach the console; empty: all.
  std::vector<std::string> stdout_needles = {};  // --duplicate-stdout-filters, of what is teed.
  std::vector<std::string> stderr_needles = {};
  LogRotation rotation = {};
};

}  // namespace ddprun::agent
