#include "worker_sdk/transport/diagnosis.h"

#include <algorithm>
#include <vector>

#include "common/archive/packed.h"
#include "common/assert.h"

namespace ddprun::worker_sdk {

void LostPeer::report(int rank, const std::string& why) noexcept {
  DDPRUN_ASSERT(rank >= 0);
  const std::lock_guard lock(mutex_);
  if (*this) return;
  why_ = why;
  rank_.store(rank, std::memory_order_release);
}

std::string LostPeer::text(const Roster& roster) const {
  DDPRUN_ASSERT(*this);
  const std::lock_guard lock(mutex_);
  return "lost " + roster.name(rank()) + " (the agent reports: " + why_ + ")";
}

Error LostPeer::error(const Roster& roster, const Call& call) const {
  return failure(roster, call, ErrorKind::peer_lost, rank(), text(roster));
}

namespace {

std::string called(const Roster& roster, int rank, const Statement& s) {
  return roster.name(rank) + " called " + to_string(Call{.what = s.what, .number = s.number});
}

// A rank that called something else under the same number; or a partner with another idea of a
// message.
bool contradicts(const Roster& roster, const Statement& mine, int rank, const Statement& theirs) {
  if (!is_message(mine.what.kind) && !is_message(theirs.what.kind)) {
    return mine.number == theirs.number && !(mine.what == theirs.what);
  }
  const bool opposite = (mine.what.kind == OpKind::kSend && theirs.what.kind == OpKind::kRecv) ||
                        (mine.what.kind == OpKind::kRecv && theirs.what.kind == OpKind::kSend);
  return opposite && mine.what.rank == rank && theirs.what.rank == roster.rank &&
         (mine.what.type != theirs.what.type || mine.what.count != theirs.what.count);
}

bool same_call(const Statement& a, const Statement& b) {
  return a.number == b.number && a.what == b.what;
}

// More ranks have called one other thing than have called what this one has.
bool is_odd(const Statement& mine, const std::map<int, Statement>& others) {
  const auto callers_of = [&](const Statement& call) {
    return std::count_if(others.begin(), others.end(),
                         [&](const auto& other) { return same_call(other.second, call); });
  };
  const auto with_mine = callers_of(mine) + 1;
  return std::any_of(others.begin(), others.end(), [&](const auto& other) {
    return !same_call(other.second, mine) && callers_of(other.second) > with_mine;
  });
}

std::optional<Diagnosis> find_mismatch(const Roster& roster, const Statement& mine,
                                       const std::map<int, Statement>& others) {
  for (const auto& [rank, theirs] : others) {
    if (!contradicts(roster, mine, rank, theirs)) continue;
    const bool odd = !is_message(mine.what.kind) && is_odd(mine, others);
    return Diagnosis{ErrorKind::mismatch, odd ? roster.rank : rank,
                     called(roster, rank, theirs) + " where " + called(roster, roster.rank, mine)};
  }
  return std::nullopt;
}

Diagnosis of_silence(const Roster& roster, const std::vector<int>& silent, int first_lost,
                     bool anyone_timed_out) {
  const bool suspected = first_lost >= 0;
  const int peer = suspected ? first_lost : silent.front();
  if (anyone_timed_out) {
    return {ErrorKind::timed_out, peer, "no sign of " + roster.names(silent), silent};
  }
  return {ErrorKind::peer_lost, peer,
          "lost " + (suspected ? roster.name(peer) : roster.names(silent))};
}

// Follows the statements from `from` to the rank that it lost, and so on, to a rank that left no
// statement.
int silent_end(const Roster& roster, const Statement& from,
               const std::map<int, Statement>& others) {
  const Statement* at = &from;
  for (int hops = 0; hops < roster.size(); ++hops) {
    if (at->cause != Cause::kLost || at->suspect < 0 || at->suspect == roster.rank) return -1;
    const auto next = others.find(at->suspect);
    if (next == others.end()) return at->suspect;
    at = &next->second;
  }
  return -1;  // They blame each other in a circle.
}

}  // namespace

template <class A>
void fields(A& a, archive::Is<Statement> auto& m) {
  a.enumerator("kind", m.what.kind, kLastOpKind);
  a.enumerator("type", m.what.type, static_cast<DataType>(std::size(kDataTypes) - 1));
  a.enumerator("op", m.what.op, kLastReduceOp);
  a("rank", m.what.rank), a("count", m.what.count);
  auto parts = static_cast<std::int64_t>(m.what.parts);  // A hash.
  a("parts", parts);
  if constexpr (A::kReads) m.what.parts = static_cast<std::uint64_t>(parts);
  a("number", m.number), a.enumerator("cause", m.cause, Cause::kAborted);
  a("suspect", m.suspect), a("is_late", m.is_late);
}

std::string encode(const Statement& statement) {
  return archive::packed<archive::Ended<' '>>(statement);
}
Result<Statement> decode_statement(std::string_view text) {
  auto statement = archive::unpacked<archive::Ended<' '>, Statement>(text, "a statement");
  if (statement && statement->what.kind < OpKind::kAllReduce) {
    return archive::failure_of({"kind"}, "a statement");
  }
  return statement;
}

int silent_suspect(const Roster& roster, const Statement& mine,
                   const std::map<int, Statement>& others) {
  const int first = silent_end(roster, mine, others);
  if (first >= 0 || mine.cause != Cause::kLost) return first;
  for (const auto& [rank, theirs] : others) {
    const int next = silent_end(roster, theirs, others);
    if (next >= 0) return next;
  }
  return -1;
}

Diagnosis diagnose(const Roster& roster, const Statement& mine,
                   const std::map<int, Statement>& others) {
  if (auto mismatch = find_mismatch(roster, mine, others)) return *mismatch;
  for (const auto& [rank, theirs] : others) {
    if (theirs.cause != Cause::kAborted) continue;
    return {ErrorKind::peer_lost, rank, roster.name(rank) + " called abort()"};
  }
  bool anyone_timed_out = mine.cause == Cause::kTimedOut;
  int gave_up = -1;
  for (const auto& [rank, theirs] : others) {
    if (theirs.cause != Cause::kTimedOut) continue;
    anyone_timed_out = true;
    if (gave_up < 0) gave_up = rank;
  }
  std::vector<int> silent;
  for (int r = 0; r < roster.size(); ++r) {
    const auto theirs = others.find(r);
    // A rank that calls after this rank has given up was silent for too long.
    const bool is_late = mine.cause == Cause::kTimedOut && theirs != others.end() &&
                         theirs->second.cause == Cause::kLost && theirs->second.is_late;
    if (r != roster.rank && (theirs == others.end() || is_late)) silent.push_back(r);
  }
  if (!silent.empty()) {
    return of_silence(roster, silent, silent_suspect(roster, mine, others), anyone_timed_out);
  }
  if (gave_up >= 0) {
    const Statement& theirs = others.at(gave_up);
    return {ErrorKind::timed_out, gave_up,
            roster.name(gave_up) + " had given up on " +
                to_string(Call{.what = theirs.what, .number = theirs.number})};
  }
  if (anyone_timed_out) return {ErrorKind::timed_out, -1, "all ranks wait for one another"};
  return {ErrorKind::peer_lost, mine.suspect,
          mine.suspect >= 0 ? "lost the connection to " + roster.name(mine.suspect)
                            : "lost a connection"};
}

}  // namespace ddprun::worker_sdk
