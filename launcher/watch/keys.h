#pragma once
// Keys out of the bytes that a terminal sends. Pure. Used by `ddprunctl top`.
//
// One read may bring several keys (a held arrow over ssh), and one key may come in several reads:
// the bytes of an arrow are ESC [ B, and a packet may end behind any of them. An ESC that nothing
// follows in time is the key Esc.

#include <string>
#include <string_view>
#include <vector>

#include "common/time.h"

namespace ddprun::launcher {

enum class Key {
  kUp,
  kDown,
  kOpen,
  kClose,
  kNext,
  kOrder,
  kPause,
  kHelp,
  kQuit,
};

class KeyParser {
 public:
  // How long the rest of a sequence may take.
  static constexpr Milliseconds kEscapeLimit{500};

  // The keys that `bytes` complete; what has no meaning is left out.
  std::vector<Key> take(std::string_view bytes);

  // Whether a sequence has begun: call expired() if no byte comes within kEscapeLimit.
  bool is_waiting() const { return !pending_.empty(); }
  std::vector<Key> expired();

 private:
  std::string pending_;  // The beginning of a sequence.
};

}  // namespace ddprun::launcher
