#include "examples/train/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace examples {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr std::size_t kMostColumns = 120;
constexpr std::size_t kFewestCells = 8;

std::size_t terminal_columns() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return 80;
}

}  // namespace

std::string render_bar(const ProgressState& state, std::size_t columns) {
  const std::size_t total = std::max<std::size_t>(state.total, 1);
  const std::size_t done = std::min(state.done, total);
  std::string percent = std::to_string(100 * done / total) + "%";
  percent.insert(0, 5 - percent.size(), ' ');
  // Brackets, spaces, and the last column, where some terminals would break the line.
  const std::size_t taken = state.label.size() + state.tail.size() + percent.size() + 6;
  std::string bar;
  if (columns > taken + kFewestCells) {
    const std::size_t cells = std::min<std::size_t>(columns - taken, 40);
    const std::size_t full = cells * done / total;
    bar = " [" + std::string(full, '=') + std::string(cells - full, ' ') + "]";
    if (full > 0 && full < cells) bar[full + 1] = '>';
  }
  std::string text = state.label + bar + percent + "  " + state.tail;
  if (text.size() >= columns) text.resize(columns > 0 ? columns - 1 : 0);
  return text;
}

std::string eta_text(std::chrono::nanoseconds elapsed, std::int64_t done, std::int64_t left) {
  if (done <= 0) return "";
  const double per_step =
      std::chrono::duration<double>(elapsed).count() / static_cast<double>(done);
  const auto seconds = static_cast<long long>(std::ceil(per_step * static_cast<double>(left)));
  char text[48];
  if (seconds < 3600) {
    std::snprintf(text, sizeof text, "ETA %lld:%02lld", seconds / 60, seconds % 60);
  } else {
    std::snprintf(text, sizeof text, "ETA %lld:%02lld:%02lld", seconds / 3600, seconds / 60 % 60,
                  seconds % 60);
  }
  return text;
}

std::size_t bar_columns() {
  if (isatty(STDOUT_FILENO) != 0) return std::min(terminal_columns(), kMostColumns);
  const char* given = std::getenv("DDPRUN_TERMINAL_COLUMNS");
  std::size_t columns = 0;
  if (given != nullptr) std::from_chars(given, given + std::strlen(given), columns);
  return std::min(columns, kMostColumns);
}

Progress::Progress(bool enabled)
    : enabled_(enabled),
      columns_(enabled ? bar_columns() : 0),
      own_terminal_(isatty(STDOUT_FILENO) != 0) {}

void Progress::update(const ProgressState& state) {
  if (columns_ == 0) return;
  const auto now = std::chrono::steady_clock::now();
  if (now < next_) return;
  next_ = now + kRedraw;
  std::string text = render_bar(state, columns_);
  const std::size_t length = text.size();
  if (length < shown_) text.resize(shown_, ' ');
  shown_ = length;
  std::printf("%s\r", text.c_str());
  std::fflush(stdout);
}

void Progress::line(const std::string& text) {
  if (!enabled_) return;
  std::string padded = text;
  // If another program shows our output, it clears its status line itself.
  if (own_terminal_ && padded.size() < shown_) padded.resize(shown_, ' ');
  shown_ = 0;
  std::printf("%s\n", padded.c_str());
  std::fflush(stdout);
}

}  // namespace examples
