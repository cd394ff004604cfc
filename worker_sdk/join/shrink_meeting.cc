#include "worker_sdk/join/shrink_meeting.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstWait{100};  // Then twice as long each time.
constexpr milliseconds kLongestWait{2000};
constexpr milliseconds kSettlementGrace{2000};  // For who settles it to have written it down.

std::string key_of(int rank) { return "here/" + std::to_string(rank); }

[[noreturn]] void refuse(const SurvivorsWish& wish, const std::string& whose) {
  throw Error(ErrorKind::mismatch, {.rank = wish.rank, .operation = "shrink"},
              whose + " is of another version of ddprun");
}

// False: some have not come.
bool wait_for(Store& keys, const std::vector<int>& ranks, milliseconds limit) {
  std::vector<std::string> names;
  for (const int r : ranks) names.push_back(key_of(r));
  try {
    keys.wait(names, limit);
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::timed_out) throw;
    return false;
  }
}

void listen(Store& keys, Survey& survey, const SurvivorsWish& wish) {
  milliseconds patience = kFirstWait;
  for (;;) {
    const std::vector<int> awaited = survey.awaited();
    if (awaited.empty()) return;
    const bool over = Clock::now() >= wish.give_up;
    const bool all = wait_for(keys, awaited, std::min(patience, left_until(wish.give_up)));
    for (const int r : awaited) {
      if (!all && !keys.check({key_of(r)})) continue;
      const auto lost = decode_ranks(keys.get(key_of(r), kSettlementGrace), wish.size);
      if (!lost) refuse(wish, "rank " + std::to_string(r));
      survey.hear(r, *lost);
    }
    if (over || (!all && keys.check({"settled"}))) return;
    patience = std::min(patience * 2, kLongestWait);
  }
}

}  // namespace

AgreedSurvivors agree_on_survivors(Store& keys, const SurvivorsWish& wish) {
  keys.set(key_of(wish.rank), encode_ranks(wish.lost));
  Survey survey(wish.rank, wish.size, wish.lost);
  listen(keys, survey, wish);
  if (keys.add("first", 1) == 1) {
    keys.set("settled", encode(AgreedSurvivors{wish.limit, survey.members()}));
  }
  const auto settlement = decode_agreed(keys.get("settled", kSettlementGrace), wish.size);
  if (!settlement) refuse(wish, "the rank that settles which ranks are left");
  return *settlement;
}

}  // namespace ddprun::worker_sdk
