#pragma once
// The progress display of rank 0 of train: a bar that redraws itself on a terminal, else plain
// lines.

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>

namespace examples {

// "epoch 1/2 [=======>       ]  50%  loss 0.412  4812 samples/s  ETA 0:42", cut to `columns`.
struct ProgressState {
  std::string label;  // "epoch 1/2"
  std::size_t done = 0;
  std::size_t total = 1;
  std::string tail;  // "loss 0.412  4812 samples/s  ETA 0:42"
};
std::string render_bar(const ProgressState& state, std::size_t columns);

// "ETA 0:42", or "ETA 1:02:03", if `left` steps take as long each as `done` steps did in `elapsed`;
// empty before the first.
std::string eta_text(std::chrono::nanoseconds elapsed, std::int64_t done, std::int64_t left);

// The width for a bar: the terminal's width if stdout is one, $DDPRUN_TERMINAL_COLUMNS if the
// launcher shows our output on one, else 0: no bar.
std::size_t bar_columns();

// Draws at most ten times a second. Bars end in '\r', so that the next one, or a line, replaces
// them.
class Progress {
 public:
  explicit Progress(bool enabled);
  void update(const ProgressState& state);
  void line(const std::string& text);  // A line that stays.
  bool drawn() const { return columns_ > 0; }

 private:
  bool enabled_;
  std::size_t columns_;
  std::size_t shown_ = 0;  // Characters of the bar on the screen.
  bool own_terminal_;
  std::chrono::steady_clock::time_point next_{};
};

}  // namespace examples
