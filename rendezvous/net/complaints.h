#pragma once
// Which of many lines are worth saying: each once in a window of time, and not more than so many
// in all. What is left out is counted and said with the next line. So neither a port scan nor ten
// thousand nodes can fill a disk. Pure; used where connections are refused, and for what happens to
// nodes.

#include <cstdint>
#include <optional>
#include <set>
#include <string>

#include "common/time.h"

namespace ddprun::rendezvous {

class Complaints {
 public:
  static constexpr std::size_t kLinesPerWindow = 20;
  static constexpr Milliseconds kWindow{60'000};

  explicit Complaints(std::size_t lines = kLinesPerWindow, Milliseconds window = kWindow)
      : lines_(lines), window_(window) {}

  // `line` if it may be said now, with a remark on what was left out before; else nothing. `about`
  // names the address and the kind of complaint.
  std::optional<std::string> say(const std::string& about, std::string line, TimePoint now);

  // `line`, which is said in any case, with that remark.
  std::string remark(std::string line);

 private:
  const std::size_t lines_;
  const Milliseconds window_;
  std::optional<TimePoint> window_ends_;
  std::set<std::string> said_;  // In this window.
  std::uint64_t left_out_ = 0;  // Since the last line.
};

}  // namespace ddprun::rendezvous
