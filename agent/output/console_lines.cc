#include "agent/output/console_lines.h"

#include <time.h>

#include <utility>

namespace ddprun::agent {
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

int ConsoleLines::enter(Speaker speaker) {
  if (fold_) fold_->enter(speaker.rank);
  if (free_.empty()) {
    sources_.push_back(std::move(speaker));
    return static_cast<int>(sources_.size()) - 1;
  }
  const int source = free_.back();
  free_.pop_back();
  sources_[static_cast<std::size_t>(source)] = std::move(speaker);
  return source;
}

void ConsoleLines::leave(int source) {
  left_.push_back(source);
  if (fold_) {
    fold_->leave(sources_[static_cast<std::size_t>(source)].rank);
    show_folded(/*all=*/false);     // What only this one has not said.
    if (fold_->deadline()) return;  // Its lines may still wait.
  }
  free_.insert(free_.end(), left_.begin(), left_.end());
  left_.clear();
}

void ConsoleLines::line(int source, std::string_view text, bool whole) {
  const Speaker& speaker = sources_[static_cast<std::size_t>(source)];
  if (time_ == 0 && options_.format == LineFormat::kJson) time_ = wall_time();
  if (!fold_) return show({}, speaker, text, whole);
  // Standard output and error may share this console; their lines are not the same.
  fold_->add(speaker.rank,
             {.ranks = {},
              .source = source,
              .kind = speaker.is_stderr ? 1 : 0,
              .text = std::string(text),
              .whole = whole},
             Clock::now());
}

void ConsoleLines::progress(int source, std::string_view text) {
  const Speaker& speaker = sources_[static_cast<std::size_t>(source)];
  if (options_.format == LineFormat::kText) console_.progress(speaker.prefix, text);
}

void ConsoleLines::show(const std::set<int>& ranks, const Speaker& speaker, std::string_view text,
                        bool whole) {
  if (options_.format == LineFormat::kJson) return show_json(ranks, speaker, text, whole);
  const std::string_view mark = whole ? std::string_view() : kCutMark;
  if (ranks.size() < 2) return console_.line(speaker.prefix, text, mark);
  const std::string prefix = "[" + rank_ranges(ranks) + "] x" + std::to_string(ranks.size()) + ": ";
  console_.line(prefix, text, mark);
}

void ConsoleLines::show_json(const std::set<int>& ranks, const Speaker& speaker,
                             std::string_view text, bool whole) {
  const std::string before =
      ranks.size() < 2 ? json_before(speaker, time_) : json_before_folded(speaker, ranks, time_);
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

}  // namespace ddprun::agent
