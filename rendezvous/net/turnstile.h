#pragma once
// Who may shake hands now, where thousands come at once. A handshake under way costs three times
// the memory of the link that it makes, and a daemon has one core: letting everybody begin makes
// nobody finish sooner. Whoever does not get on with it keeps nobody waiting for longer than
// `patience`. Pure. Used by the Listener.

#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_set>
#include <utility>
#include <vector>

#include "common/time.h"

namespace ddprun::rendezvous {

class Turnstile {
 public:
  using Id = std::uint64_t;

  Turnstile(std::size_t room, Milliseconds patience) : room_(room), patience_(patience) {}

  // True: `who` may begin. False: it is in line, and admit() will name it.
  bool enter(Id who, TimePoint now);
  // It has finished, failed, or given up while in line.
  void leave(Id who);
  // Those whose turn has come, in the order in which they entered.
  std::vector<Id> admit(TimePoint now);
  // When admit() may have somebody although nobody has left; nothing if nobody is in line.
  std::optional<TimePoint> deadline() const;

 private:
  void begin(Id who, TimePoint now);

  const std::size_t room_;
  const Milliseconds patience_;
  std::unordered_set<Id> inside_;               // Those that count against the room.
  std::deque<std::pair<TimePoint, Id>> begun_;  // Oldest first; some have left since.
  std::deque<Id> line_;                         // Some have left since.
  std::unordered_set<Id> in_line_;
};

}  // namespace ddprun::rendezvous
