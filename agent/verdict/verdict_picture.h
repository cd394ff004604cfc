#pragma once
// The verdict as a picture for terminals; everywhere else it is a paragraph (rendezvous/run). Same
// facts, one per line: first cause, last words, victims, where the time went, what to try, exit
// code. Pure. Used by Agent.

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/time.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::agent {

// The line that a terminal shows below the workers' lines while a run trains. Pure. Used by Agent.
struct StatusFacts {
  std::string run_id{};  // "none": the user has named none.
  int world_size = 0;    // 0: no round runs.
  int nodes = 1;
  std::chrono::seconds elapsed{0};
  std::optional<std::uint64_t> step{};  // Nothing: no worker reports any.
  double steps_per_s = 0;               // 0: not known yet.
  int late_rank = -1;                   // That the others wait for; -1: none.
  double late_ms = 0;                   // A step.
  int restart_count = 0;
  int max_restarts = 0;
};

struct StatusStyle {
  int columns = 80;
  bool colour = true;
  bool utf8 = true;
};

// One line without its end, narrower than the terminal; what is needed least is left out first.
std::string status_text(const StatusFacts& facts, const StatusStyle& style);

struct PictureStyle {
  int columns = 80;           // No line is wider.
  bool colour = true;         // Of the 16 that the user's terminal has.
  bool output_shown = false;  // The last words are on the screen already.
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
