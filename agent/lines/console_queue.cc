#include "agent/lines/console_queue.h"

#include <algorithm>

#include "common/assert.h"

namespace ddprun::agent {
namespace {

constexpr std::string_view kEraseLine = "\r\x1b[K";
constexpr std::size_t kSlack = std::size_t{1} << 20;  // What is in flight when reading stops.
constexpr std::size_t kCompactAt = std::size_t{1}
                                   << 18;  // Written bytes kept before they are moved out.

}  // namespace

void ConsoleQueue::add_line(std::string_view prefix, std::string_view text,
                            std::string_view suffix) {
  const bool overflows = state_ == State::kHolding && size() >= bytes_max_ + kSlack;
  if (state_ == State::kDropping || overflows) {
    ++dropped_;
    ++dropped_in_all_;
    return;
  }
  append(prefix, text, suffix);
  if (size() >= bytes_max_ && state_ == State::kOpen) state_ = State::kHolding;
}

void ConsoleQueue::append(std::string_view prefix, std::string_view text, std::string_view suffix) {
  if (transient_shown_) bytes_.append(kEraseLine);
  transient_shown_ = false;
  bytes_.append(prefix).append(text).append(suffix).push_back('\n');
}

void ConsoleQueue::add_transient(std::string_view prefix, std::string_view text,
                                 std::size_t columns) {
  if (!empty()) return;
  const std::string whole = std::string(prefix).append(text);
  bytes_.append(kEraseLine).append(fit_columns(whole, columns));
  transient_shown_ = true;
}

void ConsoleQueue::erase_transient() {
  if (transient_shown_) bytes_.append(kEraseLine);
  transient_shown_ = false;
}

std::string_view ConsoleQueue::front(std::size_t bytes_max) const {
  DDPRUN_ASSERT(bytes_max > 0 && head_ <= bytes_.size());
  const std::string_view waiting = std::string_view(bytes_).substr(head_);
  if (waiting.size() <= bytes_max) return waiting;
  const std::string_view chunk = waiting.substr(0, bytes_max);
  const std::size_t newline = chunk.rfind('\n');
  return newline == std::string_view::npos ? chunk : chunk.substr(0, newline + 1);
}

void ConsoleQueue::consume(std::size_t bytes) {
  DDPRUN_ASSERT(bytes <= size());
  head_ += bytes;
  if (head_ == bytes_.size()) {
    bytes_.clear();
    head_ = 0;
  } else if (head_ >= kCompactAt && head_ >= bytes_.size() / 2) {
    bytes_.erase(0, head_);
    head_ = 0;
  }
  if (state_ == State::kOpen || size() > bytes_max_ / 2) return;
  state_ = State::kOpen;
  close_gap();
}

void ConsoleQueue::give_up() {
  if (state_ == State::kHolding) state_ = State::kDropping;
}

void ConsoleQueue::close_gap() {
  if (dropped_ == 0) return;
  DDPRUN_ASSERT(dropped_ <= dropped_in_all_);
  append("[ddprun: ", std::to_string(dropped_), " lines dropped, " + name_ + " too slow]");
  dropped_ = 0;
}

void ConsoleQueue::clear() {
  bytes_.clear();
  head_ = 0;
  dropped_ = 0;
  transient_shown_ = false;
  state_ = State::kOpen;
}

std::string_view fit_columns(std::string_view text, std::size_t columns) {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    const bool starts_character = (text[at] & 0xc0) != 0x80;
    if (starts_character && columns-- == 0) break;
  }
  return text.substr(0, at);
}

}  // namespace ddprun::agent
