#pragma once
// When a log file gives way to a fresh one, as in `--log-rotate 100M:5`. The launcher reads it from
// the command line, LogFile acts on it.

#include <cstdint>

namespace ddprun::agent {

// stdout.log becomes stdout.log.1 before a line that would take it beyond `bytes`, that one becomes
// stdout.log.2, and so on.
struct LogRotation {
  std::uint64_t bytes = 0;  // 0: one file, however long.
  int keep = 5;             // Files beside the one that grows.
  bool operator==(const LogRotation&) const = default;
};

}  // namespace ddprun::agent
