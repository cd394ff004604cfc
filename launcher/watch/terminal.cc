#include "launcher/watch/terminal.h"

#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <optional>

#include "common/system/descriptors.h"
#include "common/system/own_process.h"
#include "common/text/display.h"

namespace ddprun::launcher {
namespace {

constexpr char kEscape = '\x1b';
constexpr std::size_t kSequenceMax = 32;

struct Meaning {
  char sign;
  Key key;
};
constexpr auto kSigns = std::to_array<Meaning>({{'k', Key::kUp},
                                                {'j', Key::kDown},
                                                {'\r', Key::kOpen},
                                                {'\n', Key::kOpen},
                                                {'\t', Key::kNext},
                                                {'o', Key::kOrder},
                                                {'p', Key::kPause},
                                                {' ', Key::kPause},
                                                {'?', Key::kHelp},
                                                {'h', Key::kHelp},
                                                {'q', Key::kQuit}});
// The last byte of the sequence of an arrow: ESC [ A, ESC O A, and with a modifier ESC [ 1 ; 5 A.
constexpr auto kArrows = std::to_array<Meaning>(
    {{'A', Key::kUp}, {'B', Key::kDown}, {'C', Key::kOpen}, {'D', Key::kClose}});

template <class Table>
void add_meaning(const Table& table, char sign, std::vector<Key>& keys) {
  for (const Meaning& meaning : table) {
    if (meaning.sign == sign) keys.push_back(meaning.key);
  }
}

// The size of the sequence at the beginning of `text`, which is an escape; std::nullopt:
// incomplete.
std::optional<std::size_t> sequence_size(std::string_view text) {
  if (text.size() < 2) return std::nullopt;
  if (text[1] == 'O') return text.size() < 3 ? std::nullopt : std::optional<std::size_t>(3);
  if (text[1] != '[') return 1;  // Esc, or Alt and a key: that key.
  for (std::size_t at = 2; at < text.size(); ++at) {
    if (text[at] >= '@' && text[at] <= '~') return at + 1;
    if (text[at] < ' ' || text[at] > '~' || at == kSequenceMax) return at;  // Not a sequence.
  }
  return std::nullopt;
}

}  // namespace

std::vector<Key> KeyParser::take(std::string_view bytes) {
  std::vector<Key> keys;
  const std::string text = pending_.append(bytes);
  pending_.clear();
  for (std::string_view rest = text; !rest.empty();) {
    if (rest[0] != kEscape) {
      add_meaning(kSigns, rest[0], keys);
      rest.remove_prefix(1);
      continue;
    }
    const auto size = sequence_size(rest);
    if (!size) {
      pending_ = rest;
      break;
    }
    if (*size == 1 && rest[1] == kEscape) keys.push_back(Key::kQuit);
    if (*size > 2) add_meaning(kArrows, rest[*size - 1], keys);
    rest.remove_prefix(*size);
  }
  return keys;
}

std::vector<Key> KeyParser::expired() {
  const bool is_escape = pending_.size() == 1;
  pending_.clear();
  return is_escape ? std::vector<Key>{Key::kQuit} : std::vector<Key>{};
}

namespace {

sigset_t watched_signals() {
  sigset_t set;
  ::sigemptyset(&set);
  for (const int signal : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP, SIGCONT, SIGWINCH}) {
    ::sigaddset(&set, signal);
  }
  return set;
}

void write_screen(std::string_view text) { (void)write_all(STDOUT_FILENO, text); }

}  // namespace

ScreenStyle output_style() {
  ScreenStyle style;
  winsize size{};
  const bool terminal = ::isatty(STDOUT_FILENO) == 1;
  if (terminal && ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0) style.columns = size.ws_col;
  const bool dumb = environment_variable("TERM") == "dumb";
  const bool plain =
      dumb || !environment_variable("NO_COLOR").empty() || !environment_variable("CI").empty();
  style.colours = environment_variable("CLICOLOR_FORCE") == "1" || (terminal && !plain);
  style.utf8 = !dumb && is_utf8_locale(environment_variable);
  return style;
}

bool can_redraw() {
  const std::string term = environment_variable("TERM");
  return ::isatty(STDOUT_FILENO) == 1 && ::isatty(STDIN_FILENO) == 1 && !term.empty() &&
         term != "dumb";
}

Result<std::unique_ptr<FullScreen>> FullScreen::open() {
  std::unique_ptr<FullScreen> screen(new FullScreen);
  if (::tcgetattr(STDIN_FILENO, &screen->before_) != 0) return errno_failure("asking the terminal");
  const sigset_t watched = watched_signals();
  ::sigprocmask(SIG_BLOCK, &watched, nullptr);
  screen->signals_.reset(::signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!screen->signals_) return errno_failure("watching signals");
  screen->enter();
  return screen;
}

FullScreen::~FullScreen() { leave(); }

void FullScreen::enter() const {
  termios raw = before_;
  raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
  raw.c_cc[VMIN] = 1, raw.c_cc[VTIME] = 0;
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &raw);
  write_screen("\x1b[?1049h\x1b[?25l\x1b[2J");
}

void FullScreen::leave() const {
  write_screen("\x1b[?25h\x1b[?1049l");
  ::tcsetattr(STDIN_FILENO, TCSADRAIN, &before_);
}

FullScreen::Size FullScreen::size() const {
  winsize size{};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) return {};
  return {.columns = size.ws_col, .lines = size.ws_row};
}

void FullScreen::draw(const std::vector<std::string>& lines) const {
  std::string text = "\x1b[H";
  for (std::size_t i = 0; i < lines.size(); ++i) {
    text += lines[i] + "\x1b[K" + (i + 1 < lines.size() ? "\r\n" : "");
  }
  write_screen(text + "\x1b[J");
}

// Ctrl-Z: the shell gets its screen back until SIGCONT.
void FullScreen::stop() {
  leave();
  ::raise(SIGSTOP);
  enter();
}

bool FullScreen::take_signals() {
  signalfd_siginfo info{};
  while (::read(signals_.get(), &info, sizeof info) == sizeof info) {
    const auto signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGTSTP) stop();
    if (signal != SIGTSTP && signal != SIGCONT && signal != SIGWINCH) return false;
  }
  return true;
}

std::optional<std::string> FullScreen::take_bytes() {
  std::array<char, 256> bytes{};
  const ssize_t got = ::read(STDIN_FILENO, bytes.data(), bytes.size());
  if (got < 0 && (errno == EINTR || errno == EAGAIN)) return "";
  if (got <= 0) return std::nullopt;
  return std::string(bytes.data(), static_cast<std::size_t>(got));
}

}  // namespace ddprun::launcher
