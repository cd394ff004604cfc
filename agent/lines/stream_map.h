#pragma once
// Which of a worker's two output streams something applies to, as in `--redirects 0:1,1:3`. The
// launcher reads it from the command line, Output acts on it.

#include <cstdint>
#include <map>

namespace ddprun::agent {

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

}  // namespace ddprun::agent
