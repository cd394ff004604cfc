#pragma once
// Who is to blame when a connection broke or a wait was too long? Gloo says at best an address, and
// the first rank to give up closes its connections, so that others see it as the culprit. Therefore
// each rank that fails leaves a statement in the store and reads those of the others; the rank that
// left none is the one that is dead, stopped or elsewhere.
//
// gloo_backend.cc does the writing and reading.

#include <atomic>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "ddprun/error.h"
#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {

// What a backend was told of a peer that is gone. The first word counts.
class LostPeer {
 public:
  // From any thread. `why` in the words of who knows it.
  void tell(int rank, const std::string& why) noexcept;
  int rank() const noexcept { return rank_.load(std::memory_order_acquire); }  // -1: none.
  explicit operator bool() const noexcept { return rank() >= 0; }

  // Only where there is one. "lost rank 2 on node-b (the agent reports: its node was lost)"
  std::string text(const Roster& roster) const;
  Error error(const Roster& roster, const Call& call) const;

 private:
  std::atomic<int> rank_{-1};
  mutable std::mutex mutex_;
  std::string why_;
};

enum class Cause : std::uint8_t {
  kTimedOut,  // The deadline passed.
  kLost,      // A connection broke.
  kAborted,   // abort() was called.
};

// What a rank knows when its operation fails.
struct Statement {
  Signature what;
  std::uint64_t number = 0;
  Cause cause = Cause::kLost;
  int suspect = -1;      // The peer of the broken connection, where Gloo tells.
  bool is_late = false;  // A connection had ended before this rank called.
};

// As text for the store, and back; nothing if the text is not a statement.
std::string encode(const Statement& statement);
std::optional<Statement> decode_statement(std::string_view text);

struct Diagnosis {
  ErrorKind kind = ErrorKind::peer_lost;
  int peer = -1;
  std::string text;
  std::vector<int> missing = {};  // Of a time-out.
};

// Whom this rank lost; if that one has left a statement, whom it had lost before, and so on: the
// first who has left none. Where that leads nowhere, the same from the others' statements; -1 if
// nobody has lost a silent rank.
int silent_suspect(const Roster& roster, const Statement& mine,
                   const std::map<int, Statement>& others);

// `others`: the statements of the ranks that left one in time. More than one cause may be true at
// once; the order is: ranks called different things, somebody aborted, somebody is silent, a plain
// time-out.
Diagnosis diagnose(const Roster& roster, const Statement& mine,
                   const std::map<int, Statement>& others);

}  // namespace ddprun::worker_sdk
