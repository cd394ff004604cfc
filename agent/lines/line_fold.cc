#include "agent/lines/line_fold.h"

#include <algorithm>
#include <utility>

#include "common/assert.h"

namespace ddprun::agent {

LineFold::Key LineFold::key_of(const Line& line) {
  return std::to_string(line.kind) + " " + line.text;
}

void LineFold::leave(int rank) {
  const auto there = present_.find(rank);
  DDPRUN_ASSERT(there != present_.end());
  if (--there->second == 0) present_.erase(there);
}

// A rank that has ended has said what it had to say, but does not stand for one that is there.
bool LineFold::said_by_all(const std::set<int>& ranks) const {
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
  const bool complete = !front.line.whole || said_by_all(front.line.ranks);
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

}  // namespace ddprun::agent
