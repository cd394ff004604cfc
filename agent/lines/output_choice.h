#pragma once
// What a user chooses of the workers' output and input: where it goes, and behind which prefix. The
// launcher reads it from the command line, Output and the Agent act on it.

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "agent/lines/lines.h"

namespace ddprun::agent {

// Which workers have the launcher's standard input, by local rank; that of the others is /dev/null.
struct StdinChoice {
  bool all = false;
  int local_rank = -1;  // -1: none.
  bool has(int rank) const { return all || rank == local_rank; }
  bool operator==(const StdinChoice&) const = default;
};

// When a log file gives way to a fresh one, as in `--log-rotate 100M:5`. The launcher reads it from
// the command line, LogFile acts on it.

// stdout.log becomes stdout.log.1 before a line that would take it beyond `bytes`, that one becomes
// stdout.log.2, and so on.
struct LogRotation {
  std::uint64_t bytes = 0;  // 0: one file, however long.
  int keep = 5;             // Files beside the one that grows.
  bool operator==(const LogRotation&) const = default;
};

// Which of a worker's two output streams something applies to, as in `--redirects 0:1,1:3`. The
// launcher reads it from the command line, Output acts on it.
struct StreamMap {
  enum Streams : std::uint8_t { kNone = 0, kStdout = 1, kStderr = 2, kBoth = 3 };
  std::uint8_t others = kNone;            // For every local rank not in of_rank.
  std::map<int, std::uint8_t> of_rank{};  // By local rank.

  bool has(int local_rank, Streams stream) const {
    const auto found = of_rank.find(local_rank);
    return ((found == of_rank.end() ? others : found->second) & stream) != 0;
  }
  bool operator==(const StreamMap&) const = default;
};

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
