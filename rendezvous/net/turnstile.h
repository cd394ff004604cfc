#pragma once
// Which clients may begin their handshake now, if thousands come at once. A handshake under way
// costs three times the memory of the link that it makes, and a daemon has one core: if all begin
// at once, none finishes sooner. A client that does not make progress keeps the others waiting for
// `patience` at most. Pure. Used by the Listener.

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/time.h"

namespace ddprun::rendezvous {

class Turnstile {
 public:
  using Id = std::uint64_t;

  Turnstile(std::size_t room, Milliseconds patience) : room_(room), patience_(patience) {}

  // True: `visitor` may begin. False: it is in line, and admit() will name it.
  bool enter(Id visitor, TimePoint now);
  // It has finished, failed, or given up while in line.
  void leave(Id visitor);
  // Those whose turn has come, in the order in which they entered.
  std::vector<Id> admit(TimePoint now);
  // When admit() may return a client although none has left; nothing if the line is empty.
  std::optional<TimePoint> deadline() const;

 private:
  void begin(Id visitor, TimePoint now);

  const std::size_t room_;
  const Milliseconds patience_;
  std::unordered_set<Id> inside_;               // Those that count against the room.
  std::deque<std::pair<TimePoint, Id>> begun_;  // Oldest first; some have left since.
  std::deque<Id> line_;                         // Some have left since.
  std::unordered_set<Id> in_line_;
};

// Which of many lines are worth logging: each once in a window of time, and not more than so many
// in all. The lines left out are counted, and the count is logged with the next line. So neither a
// port scan nor ten thousand nodes can fill a disk. Pure; used for refused connections and for what
// happens to nodes.
class Complaints {
 public:
  static constexpr std::size_t kLinesPerWindow = 20;
  static constexpr Milliseconds kWindow{60'000};

  explicit Complaints(std::size_t lines = kLinesPerWindow, Milliseconds window = kWindow)
      : lines_(lines), window_(window) {}

  // `line` if it may be logged now, with a remark on what was left out before; else nothing.
  // `about` names the address and the kind of complaint.
  std::optional<std::string> filter(const std::string& about, std::string line, TimePoint now);

  // `line`, which is logged in any case, with that remark.
  std::string remark(std::string line);

 private:
  const std::size_t lines_;
  const Milliseconds window_;
  std::optional<TimePoint> window_ends_;
  std::set<std::string> logged_;  // In this window.
  std::uint64_t left_out_ = 0;    // Since the last line.
};

}  // namespace ddprun::rendezvous
