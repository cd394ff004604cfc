#pragma once
// The terminal of ddprunctl: its abilities, and, for top, a whole screen and keys.

#include <termios.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/system/descriptors.h"
#include "common/time.h"
#include "launcher/watch/top_screen.h"

namespace ddprun::launcher {

// Keys out of the bytes that a terminal sends. Pure. Used by `ddprunctl top`.
//
// One read may contain several keys (a held arrow over ssh), and one key may need several reads:
// the bytes of an arrow are ESC [ B, and a packet may end behind any of them. An ESC without a
// further byte in time is the key Esc.
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

  // Whether a sequence has begun: call expired() if no byte arrives within kEscapeLimit.
  bool is_waiting() const { return !pending_.empty(); }
  std::vector<Key> expired();

 private:
  std::string pending_;  // The beginning of a sequence.
};

// The style of standard output, from the environment. Not wider than the terminal; any width for a
// pipe.
ScreenStyle output_style();

// Whether a screen can be redrawn there, and standard input delivers keys.
bool can_redraw();

// The alternate screen, from here until its end. Signals that end or stop the process give the
// terminal back first.
class FullScreen {
 public:
  static Result<std::unique_ptr<FullScreen>> open();
  FullScreen(const FullScreen&) = delete;
  FullScreen& operator=(const FullScreen&) = delete;
  ~FullScreen();

  struct Size {
    int columns = 80, lines = 24;
  };
  Size size() const;
  void draw(const std::vector<std::string>& lines) const;

  // Readable when bytes of keys, or signals, can be taken below.
  static int keys_fd() { return STDIN_FILENO; }
  int signals_fd() const { return signals_.get(); }

  // The keyboard's bytes; std::nullopt: the terminal is gone.
  static std::optional<std::string> take_bytes();
  // Acts on received signals: false if one of them ends the program. The screen has to be drawn
  // again.
  bool take_signals();

 private:
  FullScreen() = default;
  void enter() const;
  void leave() const;
  void stop();

  termios before_{};
  UniqueFd signals_;
};

}  // namespace ddprun::launcher
