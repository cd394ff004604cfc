#pragma once
// Which of many warnings about strangers are worth a line: each kind of complaint about each
// address once a minute, and not more than a few lines a minute in all. What is left out is counted
// and said with the next line. So a port scan cannot fill a disk. Pure; used where connections are
// refused.

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

  // `line` if it may be said now, with a remark on what was left out before; else nothing. `about`
  // names the address and the kind of complaint.
  std::optional<std::string> say(const std::string& about, std::string line, TimePoint now);

 private:
  std::optional<TimePoint> window_ends_;
  std::set<std::string> said_;  // In this window.
  std::uint64_t left_out_ = 0;  // Since the last line.
};

}  // namespace ddprun::rendezvous
