#pragma once
// The verdict as a picture for terminals; everywhere else it is a paragraph (rendezvous/run). Same
// facts, one a line: first cause, last words, victims, where the time went, what to try, exit code.
// Pure. Used by Agent.

#include <cstdint>
#include <optional>
#include <string>

#include "common/time.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::agent {

struct PictureStyle {
  int columns = 80;          // No line is wider.
  bool colour = true;        // Of the 16 that the user's terminal has.
  bool words_shown = false;  // The last words are on the screen already.
};

// How a run ended that a signal has stopped here.
struct SignalEnd {
  int signal = 0;
  std::string why{};  // As far as it is known, as a half sentence.
  Duration after{};   // Since the run's start.
  std::optional<std::uint64_t> step{};
};
// " ! stopped by Ctrl-C after 3 min 2 s, at step 281".
std::string stopped_picture(const SignalEnd& stopped, const PictureStyle& style);

// Ends with a newline. Of what workers have written only text remains.
std::string verdict_picture(const rendezvous::Verdict& verdict, const std::string& run_id,
                            const PictureStyle& style);

}  // namespace ddprun::agent
