#pragma once
// Which rank is to blame when a connection broke or a wait was too long? Gloo reports at best an
// address, and the first rank to give up closes its connections, so that others see it as the
// culprit. Therefore each rank that fails leaves a statement in the store and reads those of the
// others; the rank that left none is the one that is dead, stopped or elsewhere.
//
// gloo_backend.cc does the writing and reading.

#include <atomic>
#include <map>
#include <mutex>
#include <string>
#include <string_view>

#include "common/error.h"
#include "ddprun/error.h"
#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {

// The loss of a peer that was reported to a backend. The first report counts.
class LostPeer {
 public:
  // From any thread. `why`: the text of the reporter.
  void report(int rank, const std::string& why) noexcept;
  int rank() const noexcept { return rank_.load(std::memory_order_acquire); }  // -1: none.
  explicit operator bool() const noexcept { return rank() >= 0; }

  // Call only after report(). "lost rank 2 on node-b (the agent reports: its node was lost)"
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

// The knowledge of a rank when its operation fails.
struct Statement {
  Signature what;
  std::uint64_t number = 0;
  Cause cause = Cause::kLost;
  int suspect = -1;      // The peer of the broken connection, if Gloo reports it.
  bool is_late = false;  // A connection had ended before this rank called.
};

// As text for the store, and back; a failure names the field that is wrong.
std::string encode(const Statement& statement);
Result<Statement> decode_statement(std::string_view text);

struct Diagnosis {
  ErrorKind kind = ErrorKind::peer_lost;
  int peer = -1;
  std::string text;
  std::vector<int> missing = {};  // Only for a time-out.
};

// The rank that this rank lost; if that rank has left a statement, the rank that it had lost
// before, and so on, to the first without a statement. If that leads nowhere, the same from the
// others' statements; -1 if no rank has lost a silent rank.
int silent_suspect(const Roster& roster, const Statement& mine,
                   const std::map<int, Statement>& others);

// `others`: the statements of the ranks that left one in time. More than one cause may be true at
// once; the order is: ranks called different things, a rank aborted, a rank is silent, a plain
// time-out.
Diagnosis diagnose(const Roster& roster, const Statement& mine,
                   const std::map<int, Statement>& others);

}  // namespace ddprun::worker_sdk
