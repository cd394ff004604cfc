#pragma once
// The verdict as a picture for terminals; everywhere else it is a paragraph (rendezvous/run). Same
// facts, one a line: first cause, last words, victims, where the time went, what to try, exit code.
// Pure. Used by Agent.

#include <string>

#include "rendezvous/protocol/wire.h"

namespace ddprun::agent {

struct PictureStyle {
  int columns = 80;          // No line is wider.
  bool colour = true;        // Of the 16 that the user's terminal has.
  bool words_shown = false;  // The last words are on the screen already.
};

// Ends with a newline. Of what workers have written only text remains.
std::string verdict_picture(const rendezvous::Verdict& verdict, const std::string& run_id,
                            const PictureStyle& style);

}  // namespace ddprun::agent
