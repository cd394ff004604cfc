#pragma once
// What may be shown on our standard error. Used by Agent for the verdict and the status line.

namespace ddprun::agent {

struct TerminalFacts {
  bool can_move = false;  // A terminal, and text on it may be overwritten: no CI, not a dumb one.
  bool colour = false;
  bool utf8 = false;
  int columns = 80;
};

TerminalFacts look_at_terminal();

// Whether the terminal is that of the process `launcher` at this moment, not of the shell that has
// put it into the background or of another program.
bool has_foreground(int launcher);

}  // namespace ddprun::agent
