#pragma once
// Lines that many ranks say alike become one, on request: "[0-7] x8: text". Pure.
//
// A line waits until every rank that is there has said it, or for `delay`; those behind it wait
// with it, so that each rank's lines come out in its order. A rank's line joins an equal one that
// waits only if that one comes after all that this rank has waiting.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>

#include "common/time.h"

namespace ddprun::agent {

class LineFold {
 public:
  struct Line {
    std::set<int> ranks;
    int source = 0;  // What add() was given by the first who said it.
    int kind = 0;
    std::string text;
    bool whole = true;
  };

  explicit LineFold(Duration delay, std::size_t bytes_max = std::size_t{1} << 20)
      : delay_(delay), bytes_max_(bytes_max) {}

  // Who could say a line: a stream of this rank begins, one has ended.
  void enter(int rank) { ++present_[rank]; }
  void leave(int rank);

  // Who says it, on a stream of which kind, what, and whether it is whole: a piece of an over-long
  // line is not folded, nor are lines of different kinds.
  void add(int rank, Line line, TimePoint now);

  // The next line that has waited long enough, has been said by all, or must make room; with
  // `all`, simply the next.
  std::optional<Line> take(TimePoint now, bool all = false);

  std::optional<TimePoint> deadline() const;

 private:
  struct Waiting {
    Line line;
    TimePoint due;
  };
  using Key = std::string;
  static Key key_of(const Line& line);
  bool said_by_all(const std::set<int>& ranks) const;

  Duration delay_;
  std::size_t bytes_max_;
  std::map<int, int> present_;  // Streams of each rank.
  std::deque<Waiting> waiting_;
  std::uint64_t first_ = 0;                         // The number of waiting_.front().
  std::unordered_map<Key, std::uint64_t> numbers_;  // The last one of each text.
  std::map<int, std::uint64_t> last_of_rank_;
  std::size_t bytes_ = 0;
};

// "0-3,6": neighbours as ranges.
std::string rank_ranges(const std::set<int>& ranks);

}  // namespace ddprun::agent
