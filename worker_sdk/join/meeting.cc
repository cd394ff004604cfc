#include "worker_sdk/join/meeting.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/archive/packed.h"

namespace ddprun::worker_sdk {
namespace {

using std::chrono::milliseconds;

// After the deadline, rank 0, if it has joined itself, still has to report the missing ranks to the
// others.
constexpr milliseconds kGrace{2000};

// The first letter of an answer.
constexpr char kAnswer = '+';
constexpr char kFailure = '-';  // Followed by "<kind> <peer> <how many are missing> <each> <text>".

// The first letter of what a rank writes in place of its part when it withdraws; a failure as above
// follows.
constexpr char kWithdrawn = '\x01';

// The rounds of a join that every rank may wait in.
constexpr const char* kTopics[] = {"hello", "attached", "connected", "nccl"};

std::string key(const std::string& topic, int rank) { return topic + "/" + std::to_string(rank); }

[[noreturn]] void throw_failure(ErrorKind kind, int peer, const std::string& text,
                                std::vector<int> missing = {}) {
  throw Error(kind, {.operation = "joining the job", .peer = peer, .missing = std::move(missing)},
              text);
}

// What follows kFailure.
struct FailureText {
  int kind = 0;
  int peer = -1;
  std::vector<int> missing{};
  std::string text{};
};

void fields(auto& a, archive::Is<FailureText> auto& m) {
  a("kind", m.kind), a("peer", m.peer), a("missing", m.missing), a.remainder("text", m.text);
}

std::string encode_failure(const Error& error) {
  const FailureText failure{error.code().value(), error.where().peer, error.where().missing,
                            error.text()};
  return kFailure + archive::packed<archive::Ended<' '>>(failure);
}

// The answer's content, or throws its failure. Ranks in it must be below `size`.
std::string open(const std::string& answer, int size) {
  if (!answer.empty() && answer.front() == kAnswer) return answer.substr(1);
  auto failure = archive::unpacked<archive::Ended<' '>, FailureText>(
      answer.empty() ? answer : answer.substr(1), "rank 0's answer");
  const bool sane = failure && failure->kind >= static_cast<int>(ErrorKind::bad_argument) &&
                    failure->kind <= static_cast<int>(ErrorKind::system) &&
                    failure->missing.size() <= static_cast<std::size_t>(size);
  if (!sane) {
    const std::string why = failure ? "" : ": " + failure.error().context;
    throw_failure(ErrorKind::mismatch, 0, "rank 0 is of another version of ddprun" + why);
  }
  throw_failure(static_cast<ErrorKind>(failure->kind), failure->peer, failure->text,
                std::move(failure->missing));
}

}  // namespace

std::string Meeting::hold(const std::string& topic, const std::string& mine, const Decide& decide) {
  keys_.set(key(topic, rank_), mine);
  if (rank_ == 0) keys_.set(topic, preside(topic, decide));
  std::string answer;
  try {
    answer = await_answer(topic);
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::timed_out) throw;
    throw_absence(topic);
  }
  failed_for_all_ = !answer.starts_with(kAnswer);
  return open(answer, size_);
}

void Meeting::withdraw(Store& keys, int rank, const Error& error) {
  const std::string failure = encode_failure(error);
  for (const char* topic : kTopics) {
    keys.set(key(topic, rank), kWithdrawn + failure);
    if (rank == 0) keys.set(topic, failure);
  }
}

std::string Meeting::await_answer(const std::string& topic) {
  try {
    return keys_.get(topic, left_until(deadline_));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::timed_out || !keys_.check({key(topic, 0)})) throw;
  }
  return keys_.get(topic, left_until(deadline_ + kGrace));
}

std::string Meeting::preside(const std::string& topic, const Decide& decide) {
  try {
    return kAnswer + decide(listen(topic));
  } catch (const Error& error) {
    return encode_failure(error);
  }
}

std::vector<std::string> Meeting::listen(const std::string& topic) {
  std::vector<std::string> statements;
  try {
    for (int r = 0; r < size_; ++r) {
      statements.push_back(keys_.get(key(topic, r), left_until(deadline_)));
      if (statements.back().starts_with(kWithdrawn)) open(statements.back().substr(1), size_);
    }
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::timed_out) throw;
    throw_absence(topic);
  }
  return statements;
}

void Meeting::throw_absence(const std::string& topic) {
  std::vector<int> missing;
  std::string numbers;
  for (int r = 0; r < size_; ++r) {
    if (keys_.check({key(topic, r)})) continue;
    missing.push_back(r);
    numbers += (numbers.empty() ? "" : ", ") + roster_->number(r);
  }
  if (missing.empty()) throw_failure(ErrorKind::timed_out, 0, "rank 0 has not answered");
  const int first = missing.front();
  throw_failure(ErrorKind::timed_out, first, "no sign of rank(s) " + numbers, std::move(missing));
}

namespace {

using std::chrono::milliseconds;

constexpr milliseconds kFirstWait{100};  // Doubled on each further wait.
constexpr milliseconds kLongestWait{2000};
constexpr milliseconds kSettlementGrace{2000};  // For the settling rank to write its decision.

std::string presence_key(int rank) { return "here/" + std::to_string(rank); }

[[noreturn]] void refuse(const SurvivorsRequest& request, const std::string& owner,
                         const Failure& why) {
  throw Error(ErrorKind::mismatch, {.rank = request.rank, .operation = "shrink"},
              owner + " is of another version of ddprun: " + why.context);
}

// False: some ranks have not arrived.
bool wait_for(Store& keys, const std::vector<int>& ranks, milliseconds limit) {
  std::vector<std::string> names;
  for (const int r : ranks) names.push_back(presence_key(r));
  try {
    keys.wait(names, limit);
    return true;
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::timed_out) throw;
    return false;
  }
}

void listen(Store& keys, Survey& survey, const SurvivorsRequest& request) {
  milliseconds patience = kFirstWait;
  for (;;) {
    const std::vector<int> awaited = survey.awaited();
    if (awaited.empty()) return;
    const bool over = Clock::now() >= request.give_up;
    const bool all = wait_for(keys, awaited, std::min(patience, left_until(request.give_up)));
    for (const int r : awaited) {
      if (!all && !keys.check({presence_key(r)})) continue;
      const auto lost = decode_ranks(keys.get(presence_key(r), kSettlementGrace), request.size);
      if (!lost) refuse(request, "rank " + std::to_string(r), lost.error());
      survey.add_report(r, *lost);
    }
    if (over || (!all && keys.check({"settled"}))) return;
    patience = std::min(patience * 2, kLongestWait);
  }
}

}  // namespace

AgreedSurvivors agree_on_survivors(Store& keys, const SurvivorsRequest& request) {
  keys.set(presence_key(request.rank), encode_ranks(request.lost));
  Survey survey(request.rank, request.size, request.lost);
  listen(keys, survey, request);
  if (keys.add("first", 1) == 1) {
    keys.set("settled", encode(AgreedSurvivors{request.limit, survey.members()}));
  }
  const auto settlement = decode_agreed(keys.get("settled", kSettlementGrace), request.size);
  if (!settlement) {
    refuse(request, "the rank that settles which ranks are left", settlement.error());
  }
  return *settlement;
}

Survey::Survey(int rank, int size, const std::vector<int>& lost) : size_(size) {
  add_report(rank, lost);
}

void Survey::add_report(int rank, const std::vector<int>& lost) {
  reported_.insert(rank);
  lost_.insert(lost.begin(), lost.end());
}

std::vector<int> Survey::awaited() const {
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r) {
    if (!reported_.contains(r) && !lost_.contains(r)) ranks.push_back(r);
  }
  return ranks;
}

std::vector<int> Survey::members() const {
  std::vector<int> ranks;
  for (const int r : reported_) {
    if (!lost_.contains(r)) ranks.push_back(r);
  }
  return ranks;
}

struct RankList {
  std::vector<int> ranks;
};
void fields(auto& a, archive::Is<RankList> auto& m) { a.items("ranks", m.ranks); }
void fields(auto& a, archive::Is<AgreedSurvivors> auto& m) {
  a("limit", m.limit), a.items("members", m.members);
}

namespace {

// Numbers with a space behind each.
using Numbers = archive::Ended<' '>;

// `what`, if `ranks` rise and are of a group of `size`.
template <class What>
Result<What> checked(Result<What> what, const std::vector<int>& ranks, int size) {
  const bool rise = std::ranges::adjacent_find(ranks, std::greater_equal<>()) == ranks.end();
  const bool fit = ranks.empty() || (ranks.front() >= 0 && ranks.back() < size);
  return rise && fit ? what : archive::failure_of({"ranks"}, "a list of ranks");
}

}  // namespace

std::string encode_ranks(const std::vector<int>& ranks) {
  return archive::packed<Numbers>(RankList{ranks});
}
std::string encode(const AgreedSurvivors& settlement) {
  return archive::packed<Numbers>(settlement);
}

Result<std::vector<int>> decode_ranks(std::string_view text, int size) {
  const auto list = archive::unpacked<Numbers, RankList>(text, "a list of ranks");
  if (!list) return list.error();
  return checked<std::vector<int>>(list->ranks, list->ranks, size);
}
Result<AgreedSurvivors> decode_agreed(std::string_view text, int size) {
  const auto agreed = archive::unpacked<Numbers, AgreedSurvivors>(text, "the agreed survivors");
  return agreed ? checked(agreed, agreed->members, size) : agreed;
}

}  // namespace ddprun::worker_sdk
