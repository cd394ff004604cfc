#include "agent/lines/lines.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/assert.h"

namespace ddprun::agent {
namespace {

// Where to cut `text`, which is longer than kLineBytesMax, so that no UTF-8 character is torn.
std::size_t cut_position(std::string_view text) {
  DDPRUN_ASSERT(text.size() > kLineBytesMax);
  std::size_t position = kLineBytesMax;
  for (int i = 0; i < 3 && (text[position] & 0xc0) == 0x80; ++i) --position;
  return (text[position] & 0xc0) == 0x80 ? kLineBytesMax : position;
}

}  // namespace

void LineSplitter::feed(std::string_view bytes, LineSink& sink) {
  while (!bytes.empty()) {
    const std::size_t newline = bytes.find('\n');
    if (newline == std::string_view::npos) break;
    end_line(bytes.substr(0, newline), sink);
    bytes.remove_prefix(newline + 1);
  }
  bytes = take_progress(bytes, sink);
  partial_.append(bytes);
  if (partial_.size() > kLineBytesMax) {
    const std::size_t kept = cut(partial_, sink).size();
    partial_.erase(0, partial_.size() - kept);
  }
  DDPRUN_ASSERT(partial_.size() <= kLineBytesMax);
}

void LineSplitter::finish(LineSink& sink) {
  if (!partial_.empty() || !progress_.empty()) end_line({}, sink);
}

// `rest` is what comes before a '\n'.
void LineSplitter::end_line(std::string_view rest, LineSink& sink) {
  if (rest.ends_with('\r')) rest.remove_suffix(1);
  rest = take_progress(rest, sink);
  if (!partial_.empty()) {
    partial_.append(rest);
    rest = partial_;
    if (rest.ends_with('\r')) rest.remove_suffix(1);
  }
  if (rest.empty()) rest = progress_;
  sink.on_line(cut(rest, sink));
  partial_.clear();
  progress_.clear();
}

// Deals with all that ends in '\r'; returns what follows the last one.
std::string_view LineSplitter::take_progress(std::string_view bytes, LineSink& sink) {
  for (std::size_t end; (end = bytes.find('\r')) != std::string_view::npos;
       bytes.remove_prefix(end + 1)) {
    partial_.append(bytes.substr(0, end));
    if (!partial_.empty()) {
      progress_.assign(cut(partial_, sink));
      sink.on_progress(progress_);
    }
    partial_.clear();
  }
  return bytes;
}

// Gives away whole pieces; returns what is left.
std::string_view LineSplitter::cut(std::string_view text, LineSink& sink) {
  while (text.size() > kLineBytesMax) {
    const std::size_t position = cut_position(text);
    sink.on_piece(text.substr(0, position));
    text.remove_prefix(position);
  }
  return text;
}

LineFold::Key LineFold::key_of(const Line& line) {
  return std::to_string(line.kind) + " " + line.text;
}

void LineFold::leave(int rank) {
  const auto there = present_.find(rank);
  DDPRUN_ASSERT(there != present_.end());
  if (--there->second == 0) present_.erase(there);
}

// A rank that has ended prints no more, but does not count in place of one that is there.
bool LineFold::printed_by_all(const std::set<int>& ranks) const {
  return ranks.size() >= present_.size() &&
         std::all_of(present_.begin(), present_.end(),
                     [&](const auto& there) { return ranks.contains(there.first); });
}

void LineFold::add(int rank, Line line, TimePoint now) {
  Key key = key_of(line);
  const auto same = numbers_.find(key);
  const auto last = last_of_rank_.find(rank);
  if (line.whole && same != numbers_.end() &&
      (last == last_of_rank_.end() || same->second > last->second)) {
    DDPRUN_ASSERT(same->second >= first_ && same->second - first_ < waiting_.size());
    waiting_[same->second - first_].line.ranks.insert(rank);
    last_of_rank_[rank] = same->second;
    return;
  }
  const std::uint64_t number = first_ + waiting_.size();
  if (line.whole) numbers_[std::move(key)] = number;
  last_of_rank_[rank] = number;
  bytes_ += line.text.size();
  line.ranks = {rank};
  waiting_.push_back({std::move(line), now + delay_});
}

std::optional<LineFold::Line> LineFold::take(TimePoint now, bool all) {
  if (waiting_.empty()) return std::nullopt;
  Waiting& front = waiting_.front();
  const bool complete = !front.line.whole || printed_by_all(front.line.ranks);
  if (!all && !complete && now < front.due && bytes_ <= bytes_max_) return std::nullopt;
  Line line = std::move(front.line);
  waiting_.pop_front();
  DDPRUN_ASSERT(!line.ranks.empty() && bytes_ >= line.text.size());
  bytes_ -= line.text.size();
  const auto known = numbers_.find(key_of(line));
  if (known != numbers_.end() && known->second == first_) numbers_.erase(known);
  for (const int rank : line.ranks) {
    const auto last = last_of_rank_.find(rank);
    if (last != last_of_rank_.end() && last->second == first_) last_of_rank_.erase(last);
  }
  ++first_;
  return line;
}

std::optional<TimePoint> LineFold::deadline() const {
  if (waiting_.empty()) return std::nullopt;
  return waiting_.front().due;
}

std::string rank_ranges(const std::set<int>& ranks) {
  std::string text;
  for (auto it = ranks.begin(); it != ranks.end();) {
    const int first = *it;
    int last = first;
    while (++it != ranks.end() && *it == last + 1) last = *it;
    text += (text.empty() ? "" : ",") + std::to_string(first);
    if (last > first) text += (last == first + 1 ? "," : "-") + std::to_string(last);
  }
  return text;
}

std::string expand_line_prefix(std::string_view line_template, const LinePrefixFacts& facts) {
  const std::map<std::string_view, std::string> values = {
      {"role_name", facts.role_name},
      {"rank", std::to_string(facts.rank)},
      {"local_rank", std::to_string(facts.local_rank)},
      {"hostname", facts.hostname},
  };
  std::string prefix;
  while (!line_template.empty()) {
    const std::size_t dollar = std::min(line_template.find("${"), line_template.size());
    prefix.append(line_template.substr(0, dollar));
    line_template.remove_prefix(dollar);
    const std::size_t close = line_template.find('}');
    if (close == std::string_view::npos) return prefix.append(line_template);
    const auto value = values.find(line_template.substr(2, close - 2));
    prefix.append(value == values.end() ? std::string(line_template.substr(0, close + 1))
                                        : value->second);
    line_template.remove_prefix(close + 1);
  }
  return prefix;
}

namespace {

using nlohmann::json;

std::string quoted_text(std::string_view text) {
  return json(text).dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string time_text(std::int64_t time) {
  std::array<char, 48> text{};
  constexpr std::int64_t kSecond = 1'000'000;
  std::snprintf(text.data(), text.size(), "{\"time\":%lld.%06lld,",
                static_cast<long long>(time / kSecond), static_cast<long long>(time % kSecond));
  return text.data();
}

}  // namespace

LineOrigin make_line_origin(const LineOriginFacts& facts, std::string prefix) {
  LineOrigin origin{.rank = facts.rank,
                    .is_stderr = facts.is_stderr,
                    .prefix = std::move(prefix),
                    .json_head = {},
                    .json_tail = {}};
  origin.json_head = "\"host\":" + quoted_text(facts.hostname) +
                     ",\"role\":" + quoted_text(facts.role) +
                     ",\"restart_count\":" + std::to_string(facts.restart_count) + ",";
  origin.json_tail =
      std::string("\"stream\":\"") + (facts.is_stderr ? "stderr" : "stdout") + "\",\"line\":\"";
  return origin;
}

std::string json_before(const LineOrigin& origin, std::int64_t time) {
  return time_text(time) + origin.json_head + "\"rank\":" + std::to_string(origin.rank) + "," +
         origin.json_tail;
}

std::string json_before_folded(const LineOrigin& origin, const std::set<int>& ranks,
                               std::int64_t time) {
  return time_text(time) + origin.json_head + "\"ranks\":" + json(ranks).dump() + "," +
         origin.json_tail;
}

std::string_view json_after(bool whole) { return whole ? "\"}" : "\",\"goes_on\":true}"; }

std::string_view json_text(std::string_view text, std::string& scratch) {
  const bool plain = std::all_of(text.begin(), text.end(), [](char letter) {
    const auto byte = static_cast<unsigned char>(letter);
    return byte >= 0x20 && byte < 0x7f && letter != '"' && letter != '\\';
  });
  if (plain) return text;
  scratch = quoted_text(text);
  DDPRUN_ASSERT(scratch.size() >= 2 && scratch.front() == '"' && scratch.back() == '"');
  return std::string_view(scratch).substr(1, scratch.size() - 2);
}

namespace {

// The rest of a letter is three bytes at most: more such bytes are not text and stay.
constexpr int kRestOfLetterMax = 3;

bool continues_letter(char byte) { return (static_cast<unsigned char>(byte) & 0xc0) == 0x80; }

}  // namespace

std::string head_of(std::string_view text, std::size_t max) {
  if (text.size() <= max) return std::string(text);
  for (int i = 0; i < kRestOfLetterMax && max > 0 && continues_letter(text[max]); ++i) --max;
  return std::string(text.substr(0, max));
}

std::string tail_of(std::string_view text, std::size_t max) {
  if (text.size() <= max) return std::string(text);
  std::size_t begin = text.size() - max;
  for (int i = 0; i < kRestOfLetterMax && begin < text.size() && continues_letter(text[begin]); ++i)
    ++begin;
  return std::string(text.substr(begin));
}

std::string shortened(std::string_view text, std::size_t max) {
  constexpr std::size_t kLeast = 40;  // For the words between, and some text.
  if (text.size() <= max) return std::string(text);
  if (max < kLeast) return head_of(text, max);
  const std::string between = " ... " + std::to_string(text.size()) + " bytes ... ";
  const std::size_t kept = max - between.size();
  return head_of(text, kept - kept / 3) + between + tail_of(text, kept / 3);
}

void TailRing::add(std::string_view line) {
  append(line.size() < kTailLineBytes ? line : shortened(line, kTailLineBytes / 2));
  append("\n");
}

void TailRing::append(std::string_view bytes) {
  DDPRUN_ASSERT(ring_.size() <= kTailBytes && next_ < kTailBytes);
  end_ += bytes.size();
  if (ring_.size() < kTailBytes) {
    if (ring_.empty()) ring_.reserve(kTailBytes);
    const std::size_t fits = std::min(bytes.size(), kTailBytes - ring_.size());
    ring_.append(bytes.substr(0, fits));
    bytes.remove_prefix(fits);
  }
  while (!bytes.empty()) {
    const std::size_t part = std::min(bytes.size(), kTailBytes - next_);
    bytes.copy(ring_.data() + next_, part);
    next_ = (next_ + part) % kTailBytes;
    bytes.remove_prefix(part);
  }
}

std::vector<std::string> TailRing::lines() const { return last_lines_of(text()); }

std::string TailRing::text() const {
  const bool full = ring_.size() == kTailBytes;
  return full ? ring_.substr(next_) + ring_.substr(0, next_) : ring_;
}

std::vector<std::string> last_lines_of(std::string_view text) {
  std::vector<std::string> lines;
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (text.empty()) return lines;
  while (lines.size() < kTailLines) {
    const std::size_t newline = text.rfind('\n');
    const bool first = newline == std::string_view::npos;
    lines.emplace_back(first ? text : text.substr(newline + 1));
    if (first) break;
    text = text.substr(0, newline);
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

}  // namespace ddprun::agent
