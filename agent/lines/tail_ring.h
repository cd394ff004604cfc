#pragma once
// The last lines of one stream, kept when everything else about a worker is gone, for the verdict.
// Pure.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

constexpr std::size_t kTailBytes = std::size_t{16} * 1024;
constexpr std::size_t kTailLines = 40;

class TailRing {
 public:
  // Only the end of a line above kTailBytes is kept. Allocates once.
  void add(std::string_view line);

  // The last kTailLines at most, oldest first; the oldest may lack its beginning.
  std::vector<std::string> lines() const;

  // All that is kept; its last byte is the end()th that was ever added. Each line ends in '\n'.
  std::string text() const;
  std::uint64_t end() const { return end_; }

 private:
  void append(std::string_view bytes);

  std::string ring_;      // At most kTailBytes; each line ends in '\n'.
  std::size_t next_ = 0;  // Where the next byte goes once the ring is full.
  std::uint64_t end_ = 0;
};

// The last kTailLines of `text`, without the ends of line. A last line without one counts.
std::vector<std::string> last_lines_of(std::string_view text);

}  // namespace ddprun::agent
