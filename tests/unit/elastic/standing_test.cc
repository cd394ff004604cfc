#include "worker_sdk/job/standing.h"

#include <catch2/catch.hpp>

namespace ddprun::elastic {
namespace {

Standing initial() { return {}; }
Standing whole(std::int64_t committed, std::int64_t visited = -1) {
  return {.condition = Condition::kWhole,
          .committed = committed,
          .visited = visited < 0 ? committed : visited};
}
// Of a process that was in rounds.
Standing met(std::int64_t last, std::int64_t made, std::int64_t committed) {
  Standing one = whole(committed);
  one.met = last, one.made = made;
  return one;
}
Standing torn(std::int64_t committed) {
  return {.condition = Condition::kTorn, .committed = committed};
}

// "2: 0 1" where ranks 0 and 1 receive from rank 2.
std::string senders(const std::vector<Standing>& by_rank) {
  const Settlement settled = settle(by_rank);
  std::string text = std::to_string(settled.source) + ":";
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    const int rank = static_cast<int>(r);
    if (lacks(by_rank[r], settled, rank)) text += " " + std::to_string(rank);
  }
  CHECK(settled.problem == "");
  CHECK(settled.has_lacking == (text.back() != ':'));
  return text;
}

TEST_CASE("Standing: the lowest of the ranks with the newest state is the source") {
  CHECK(senders({whole(7), whole(7)}) == "0:");
  CHECK(senders({whole(6), whole(7), whole(7)}) == "1: 0");
  CHECK(senders({initial(), whole(7), whole(6)}) == "1: 0 2");
  CHECK(senders({whole(0), initial()}) == "0: 1");
  CHECK(settle({whole(6), initial(), whole(9)}).committed == 9);
}

TEST_CASE("Standing: before anything is committed rank 0's state is that of all") {
  CHECK(senders({initial(), initial(), initial()}) == "0: 1 2");
  CHECK(senders({initial()}) == "0:");
  CHECK(senders({initial(), whole(0)}) == "1: 0");  // It has got rank 0's of an earlier round.
}

TEST_CASE("Standing: a torn state is replaced, and is nobody's source") {
  CHECK(senders({torn(7), whole(7)}) == "1: 0");
  CHECK(senders({torn(8), whole(7), initial()}) == "1: 0 2");
  const Settlement lost = settle({initial(), torn(7)});
  CHECK(lost.is_torn);
  CHECK(lost.culprit == 1);
  CHECK(lost.problem != "");
}

TEST_CASE("Standing: who has missed a round takes the state of those who were in it") {
  // The same step, of another round, in which sums may have had other bits.
  CHECK(senders({met(5, 5, 8), met(6, 6, 8)}) == "1: 0");
  // A step of which the others do not know that it was committed.
  CHECK(senders({met(5, 5, 8), met(6, 5, 7), met(6, 5, 7)}) == "1: 0");
  // Nothing has changed meanwhile.
  CHECK(senders({met(5, 5, 8), met(6, 5, 8)}) == "1:");
  // A round that not all have begun with one state: it is the same.
  CHECK(senders({met(5, 5, 8), met(6, 5, 8), met(5, 5, 7)}) == "1: 2");
}

TEST_CASE("Standing: a checkpoint counts if it is newer than what is in memory") {
  CHECK(senders({whole(9), met(6, 6, 8)}) == "0: 1");
  CHECK(senders({whole(8), met(6, 6, 8)}) == "1: 0");
  CHECK(senders({whole(9), met(6, 6, 8), met(5, 5, 10)}) == "0: 1 2");
  CHECK(senders({whole(7), whole(8), whole(8)}) == "1: 0");
}

TEST_CASE("Standing: who keeps other things is named") {
  Standing other = whole(3);
  other.signature = 1;
  const Settlement settled = settle({whole(3), whole(3), other});
  CHECK(settled.culprit == 2);
  CHECK_FALSE(settled.is_torn);
  CHECK(settled.problem.find("rank 2 keeps other state than rank 0") == 0);
}

TEST_CASE("Standing: a boundary is visited again unless all that had the state have done so") {
  CHECK(settle({whole(8, 8), whole(8, 4), initial()}).visited == 4);
  CHECK(settle({whole(8, 8), whole(8, 8), initial()}).visited == 8);
  CHECK(settle({whole(7, 4), whole(8, 8)}).visited == 8);
}

TEST_CASE("Standing: the run() that anybody is in is that of all, and so is its end") {
  Standing begins = initial(), ends = whole(8), beyond = whole(8);
  begins.target = 4;
  ends.target = 8, ends.closed = 4;
  CHECK(settle({begins, ends}).target == 8);
  CHECK(settle({begins, ends}).closed == 4);
  beyond.target = 12, beyond.closed = 8;
  CHECK(settle({ends, beyond}).target == 12);
  CHECK(settle({ends, beyond}).closed == 8);
}

TEST_CASE("Standing: the state is lost if no rank has one of an earlier round") {
  CHECK(settle({initial(), initial()}).is_lost);
  CHECK(settle({whole(7), initial()}).is_lost);  // Of a checkpoint.
  CHECK_FALSE(settle({initial(), met(6, 6, 8)}).is_lost);
}

TEST_CASE("Standing: ranks save in memory folders if all have one, as rarely as the slowest") {
  Standing off = initial(), new_one = initial(), slow = initial();
  off.saves = -1, new_one.saves = 0, slow.saves = 30;
  CHECK(settle({new_one, slow, new_one}).saves == 30);
  CHECK(settle({new_one, new_one}).saves == 0);
  CHECK(settle({slow, off}).saves == -1);
}

TEST_CASE("Standing: travels as numbers") {
  Standing mine = torn(11);
  mine.visited = 5, mine.target = 20, mine.closed = 10;
  mine.signature = ~std::uint64_t{0};
  mine.node = 3, mine.made = 8, mine.met = 9, mine.pace = 12, mine.saves = 13;
  const auto numbers = mine.numbers();
  CHECK(Standing::of(numbers.data()).numbers() == numbers);
  CHECK(Standing::of(numbers.data()).signature == mine.signature);
  CHECK(Standing::of(numbers.data()).made == 8);
  CHECK(Standing::of(numbers.data()).met == 9);
  CHECK(Standing::of(numbers.data()).pace == 12);
  CHECK(Standing::of(numbers.data()).saves == 13);
}

}  // namespace
}  // namespace ddprun::elastic
