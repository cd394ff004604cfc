#include "agent/output/console.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <string>
#include <utility>

#include "common/assert.h"
#include "common/system/log.h"
#include "common/system/own_process.h"
#include "common/text/display.h"

namespace ddprun::agent {

TerminalFacts read_terminal() {
  winsize size{};
  const bool terminal =
      ::isatty(STDERR_FILENO) == 1 && ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0;
  const bool moves = environment_variable("TERM") != "dumb" && environment_variable("CI").empty() &&
                     environment_variable("GITHUB_ACTIONS").empty();
  return {.can_move = terminal && moves,
          .colour = terminal && moves && environment_variable("NO_COLOR").empty(),
          .utf8 = is_utf8_locale(environment_variable),
          .columns = size.ws_col > 0 ? size.ws_col : 80};
}

bool has_foreground(int launcher) {
  const pid_t foreground = ::tcgetpgrp(STDERR_FILENO);
  if (foreground < 0) return true;  // The terminal belongs to no session.
  return foreground == ::getpgid(launcher) || foreground == ::getpgrp();
}

namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

constexpr auto kSilentAtFirst = 1s;
constexpr std::chrono::seconds kChangeEvery = 1s;
constexpr std::chrono::seconds kRemindEvery = 30s;

}  // namespace

WaitingLine::WaitingLine(boost::asio::io_context& loop)
    : timer_(loop), terminal_(::isatty(STDERR_FILENO) == 1) {}

void WaitingLine::show(std::string what, Duration left) {
  what_ = std::move(what);
  ends_.reset();
  if (left > Duration(0)) ends_ = Clock::now() + left;
  if (active_) return print();
  active_ = true;
  began_ = Clock::now();
  refresh();
}

void WaitingLine::done() {
  if (!active_) return;
  active_ = false;
  timer_.cancel();
  if (std::exchange(printed_, false)) std::fputs("\r\x1b[K", stderr);
  what_printed_.clear();
}

void WaitingLine::refresh() {
  timer_.expires_after(1s);
  timer_.async_wait([this](const boost::system::error_code& ec) {
    if (ec || !active_) return;
    print();
    refresh();
  });
}

void WaitingLine::print() {
  const auto now = Clock::now();
  if (now - began_ < kSilentAtFirst) return;
  std::string text = what_;
  if (ends_) {
    const auto left = std::chrono::ceil<std::chrono::seconds>(*ends_ - now).count();
    if (left > 0) text += "; " + std::to_string(left) + " s left";
  }
  if (terminal_) {
    std::fprintf(stderr, "\r\x1b[Kddprun: %s", text.c_str());
    std::fflush(stderr);
    printed_ = true;
  } else if (now - printed_at_ >= (what_ == what_printed_ ? kRemindEvery : kChangeEvery)) {
    log::info(text);
    what_printed_ = what_;
    printed_at_ = now;
  }
}

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::string_view kCutMark = " [ddprun: line above 64 KiB, continues]";

// For readers of the log; nothing is decided by it.
std::int64_t wall_time() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000 + now.tv_nsec / 1000;
}

}  // namespace

ConsoleLines::ConsoleLines(boost::asio::io_context& loop, Console& console,
                           ConsoleLinesOptions options)
    : console_(console), options_(options), timer_(loop) {
  if (options_.fold) fold_.emplace(*options_.fold);
}

int ConsoleLines::enter(LineOrigin origin) {
  if (fold_) fold_->enter(origin.rank);
  if (free_.empty()) {
    sources_.push_back(std::move(origin));
    return static_cast<int>(sources_.size()) - 1;
  }
  const int source = free_.back();
  free_.pop_back();
  sources_[static_cast<std::size_t>(source)] = std::move(origin);
  return source;
}

void ConsoleLines::leave(int source) {
  prompt_over(source);
  left_.push_back(source);
  if (fold_) {
    fold_->leave(sources_[static_cast<std::size_t>(source)].rank);
    show_folded(/*all=*/false);     // Lines that lack only this one.
    if (fold_->deadline()) return;  // Its lines may still wait.
  }
  free_.insert(free_.end(), left_.begin(), left_.end());
  left_.clear();
}

void ConsoleLines::line(int source, std::string_view text, bool whole) {
  const LineOrigin& origin = sources_[static_cast<std::size_t>(source)];
  if (time_ == 0 && options_.format == LineFormat::kJson) time_ = wall_time();
  if (!fold_) return show({}, origin, text, whole);
  // Standard output and error may share this console; their lines are not the same.
  fold_->add(origin.rank,
             {.ranks = {},
              .source = source,
              .kind = origin.is_stderr ? 1 : 0,
              .text = std::string(text),
              .whole = whole},
             Clock::now());
}

void ConsoleLines::progress(int source, std::string_view text) {
  const LineOrigin& origin = sources_[static_cast<std::size_t>(source)];
  if (options_.format == LineFormat::kText) console_.progress(origin.prefix, text);
}

void ConsoleLines::prompt(int source, std::string_view text) {
  if (!shows_progress()) return;
  prompting_ = source;
  console_.prompt(sources_[static_cast<std::size_t>(source)].prefix, text);
}

void ConsoleLines::prompt_over(int source) {
  if (prompting_ != source) return;
  prompting_.reset();
  console_.prompt_over();
}

void ConsoleLines::show(const std::set<int>& ranks, const LineOrigin& origin, std::string_view text,
                        bool whole) {
  if (options_.format == LineFormat::kJson) return show_json(ranks, origin, text, whole);
  const std::string_view mark = whole ? std::string_view() : kCutMark;
  if (ranks.size() < 2) return console_.line(origin.prefix, text, mark);
  const std::string prefix = "[" + rank_ranges(ranks) + "] x" + std::to_string(ranks.size()) + ": ";
  console_.line(prefix, text, mark);
}

void ConsoleLines::show_json(const std::set<int>& ranks, const LineOrigin& origin,
                             std::string_view text, bool whole) {
  const std::string before =
      ranks.size() < 2 ? json_before(origin, time_) : json_before_folded(origin, ranks, time_);
  console_.line(before, json_text(text, scratch_), json_after(whole));
}

void ConsoleLines::write_out() {
  if (fold_) {
    show_folded(/*all=*/false);
    arm();
  }
  time_ = 0;
  console_.write_out();
}

void ConsoleLines::close() {
  if (fold_) show_folded(/*all=*/true);
  timer_.cancel();
}

void ConsoleLines::show_folded(bool all) {
  if (time_ == 0) time_ = wall_time();
  const TimePoint now = Clock::now();
  while (const auto line = fold_->take(now, all)) {
    show(line->ranks, sources_[static_cast<std::size_t>(line->source)], line->text, line->whole);
  }
}

void ConsoleLines::arm() {
  const auto due = fold_->deadline();
  if (!due) return;
  timer_.expires_at(*due);
  timer_.async_wait([this, alive = std::weak_ptr(alive_)](boost::system::error_code error) {
    if (!error && alive.lock()) write_out();
  });
}

namespace {

using boost::asio::posix::stream_descriptor;
using Clock = std::chrono::steady_clock;

constexpr int kWritesPerTurn = 256;                       // Then the loop gets its turn.
constexpr auto kProgressHolds = std::chrono::seconds(5);  // The status comes back then.

bool would_block(int error) { return error == EAGAIN || error == EWOULDBLOCK || error == EINTR; }

int width_of(int fd) {
  winsize size{};
  if (::isatty(fd) == 0) return 0;
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace

Console::Console(boost::asio::io_context& loop, int fd, ConsoleOptions options)
    : options_(std::move(options)),
      queue_(options_.name, options_.queue_bytes),
      descriptor_(loop),
      hold_timer_(loop),
      kind_(open(fd)),
      columns_(width_of(fd)) {}

Console::Kind Console::open(int fd) {
  struct stat status {};
  const bool known = ::fstat(fd, &status) == 0;
  UniqueFd copy(::fcntl(fd, F_DUPFD_CLOEXEC, 3));
  const bool terminal = ::isatty(fd) == 1;
  if (!known || !copy || !(terminal || S_ISFIFO(status.st_mode) || S_ISSOCK(status.st_mode))) {
    broken_ = !copy;
    direct_ = std::move(copy);
    return Kind::kDirect;
  }
  if (S_ISSOCK(status.st_mode)) {
    descriptor_.assign(copy.release());
    return Kind::kSocket;
  }
  const std::string path = "/proc/self/fd/" + std::to_string(fd);
  UniqueFd own(::open(path.c_str(), O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC));
  const Kind kind = own ? Kind::kReopened : Kind::kShared;
  descriptor_.assign(own ? own.release() : copy.release());
  return kind;
}

void Console::line(std::string_view prefix, std::string_view text, std::string_view suffix) {
  if (broken_) return;
  // On a terminal the next line, which may be another worker's, must not get this one's colour.
  if (columns_ == 0 || !leaves_colours_on(text)) return queue_.add_line(prefix, text, suffix);
  queue_.add_line(prefix, text, std::string(kColoursOff).append(suffix));
}

void Console::progress(std::string_view prefix, std::string_view text) {
  if (broken_ || columns_ <= 1) return;
  queue_.add_transient(prefix, text, static_cast<std::size_t>(columns_ - 1));
  status_shown_ = false;
  progress_at_ = Clock::now();
}

void Console::prompt(std::string_view prefix, std::string_view text) {
  if (broken_ || columns_ <= 1) return;
  prompt_ = std::string(prefix).append(text);
  queue_.erase_transient();
  status_shown_ = false;
}

void Console::show_status(std::string_view text) {
  const bool is_held_off = !prompt_.empty() || Clock::now() - progress_at_ < kProgressHolds;
  if (broken_ || columns_ <= 1 || is_held_off) return;
  queue_.add_transient({}, text, text.size());
  status_shown_ = true;
  write_out();
}

void Console::hide_status() {
  if (broken_ || !shows_status()) return;
  queue_.erase_transient();
  write_out();
}

void Console::write_out() {
  if (!waiting_ && !write_until_full()) wait_for_room();
  const bool is_gone = !prompt_.empty() && !queue_.shows_transient();  // Under a later line.
  if (is_gone && !broken_ && queue_.empty()) {
    queue_.add_transient({}, prompt_, static_cast<std::size_t>(columns_ - 1));
    if (!write_until_full()) wait_for_room();
  }
  note_hold();
}

// Whether a write of PIPE_BUF bytes cannot block. Only needed if we share a blocking description.
bool Console::may_write() const {
  if (kind_ != Kind::kShared) return true;
  pollfd poll{const_cast<stream_descriptor&>(descriptor_).native_handle(), POLLOUT, 0};
  return ::poll(&poll, 1, 0) == 1;
}

long Console::write_some(std::string_view bytes) const {
  DDPRUN_ASSERT(!broken_ && !bytes.empty());
  if (kind_ == Kind::kDirect) return ::write(direct_.get(), bytes.data(), bytes.size());
  const int fd = const_cast<stream_descriptor&>(descriptor_).native_handle();
  if (kind_ == Kind::kSocket)
    return ::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  return ::write(fd, bytes.data(), bytes.size());
}

// False if the reader must take something first, or others their turn.
bool Console::write_until_full() {
  const std::size_t chunk = kind_ == Kind::kDirect ? std::size_t{1} << 20 : PIPE_BUF;
  for (int i = 0; i < kWritesPerTurn && !queue_.empty(); ++i) {
    if (!may_write()) return false;
    const long written = write_some(queue_.front(chunk));
    if (written >= 0) {
      queue_.consume(static_cast<std::size_t>(written));
    } else if (!would_block(errno)) {
      fail(errno);
    } else if (kind_ != Kind::kDirect) {
      return false;
    }
  }
  return queue_.empty();
}

// The reader is gone or the disk is full; neither is a reason to stop a run.
void Console::fail(int error) {
  queue_.clear();
  broken_ = true;
  if (error == EPIPE || options_.name != "standard output") return;
  log::warning("writing workers' lines to " + options_.name + ": " +
               boost::system::error_code(error, boost::system::system_category()).message() +
               "; they are dropped from here on");
}

void Console::wait_for_room() {
  if (kind_ == Kind::kDirect) return write_out();
  DDPRUN_ASSERT(!waiting_);
  waiting_ = true;
  descriptor_.async_wait(stream_descriptor::wait_write,
                         [this, alive = std::weak_ptr(alive_)](boost::system::error_code error) {
                           if (error || !alive.lock()) return;
                           waiting_ = false;
                           write_out();
                         });
}

void Console::note_hold() {
  if (holding() == was_holding_) return;
  was_holding_ = holding();
  if (was_holding_) return start_hold();
  hold_timer_.cancel();
  if (on_hold_over) on_hold_over();
}

void Console::start_hold() {
  DDPRUN_ASSERT(holding());
  hold_timer_.expires_after(options_.hold_max);
  hold_timer_.async_wait([this, alive = std::weak_ptr(alive_)](boost::system::error_code error) {
    if (error || !alive.lock()) return;
    queue_.give_up();
    note_hold();
  });
}

std::size_t Console::flush(std::chrono::milliseconds stall_max, std::chrono::milliseconds limit) {
  const TimePoint end = Clock::now() + limit;
  queue_.close_gap();
  while (!write_until_full()) {
    const auto left = std::chrono::ceil<Milliseconds>(end - Clock::now());
    if (left.count() <= 0) break;
    pollfd poll{descriptor_.is_open() ? descriptor_.native_handle() : direct_.get(), POLLOUT, 0};
    const int ready = ::poll(&poll, 1, static_cast<int>(std::min(stall_max, left).count()));
    if (ready == 0) break;
  }
  return queue_.size();
}

}  // namespace ddprun::agent
