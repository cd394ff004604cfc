#pragma once
// The events that a Supervisor gets, and the actions that it returns (supervisor.h). Pure.

#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/time.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::agent {

// What can happen.
struct LinkUp {};
struct LinkDown {
  std::string why;
  bool answers = false;  // The daemon's machine answers, though no daemon does: none decides.
};
struct Received {
  rendezvous::DaemonMessage message;
};
// The daemon sends what this agent cannot read: it would do so on another connection, too.
struct CannotRead {
  std::string what;  // As a sentence, with what to do.
};
struct WorkerEnded {
  WorkerDeath death;
  bool output_follows = false;         // LastOutput will explain more; it comes soon.
  std::optional<TimePoint> noticed{};  // If before the event.
};
struct LastOutput {
  WorkerDeath death;
};  // The same, with all that shows why.
struct StartFailed {
  WorkerDeath death;
};  // This one never ran, nor those after it.
// A worker has reported that it can be seated without a new process (common/worker_link.h).
struct WorkerReady {
  int local_rank = 0;
  int min_ranks = 0;  // Its job computes in no round with fewer.
};
// It is in no operation of that round any more, and waits for its next seat.
struct WorkerLeft {
  int local_rank = 0;
  int round = 0;
  std::int64_t kept_steps = 0;  // Of the state that it has.
};
// It takes part in that round: with the state of those that were in it before, if it had none.
struct WorkerResumed {
  int local_rank = 0;
  int round = 0;
  std::int64_t kept_steps = 0;  // Of the state that it has.
};
// A worker that was ready before cannot be reached any more. It holds its seat as a plain worker.
struct WorkerPlain {
  int local_rank = 0;
};
struct Signalled {
  int signal = 0;
  std::string why{};  // As far as it is known, as a half sentence.
};
struct LauncherDied {};
using Event = std::variant<LinkUp, LinkDown, Received, CannotRead, WorkerEnded, LastOutput,
                           StartFailed, WorkerReady, WorkerLeft, WorkerResumed, WorkerPlain,
                           Signalled, LauncherDied, Tick>;

// What to do, in order.
struct SendJoin {
  int after_round = -1;
  int workers = 1;      // That it offers; ...
  bool living = false;  // ... living ones, which may be none yet. Else it will start them.
  int beginning = 0;    // More that live, and are not ready yet.
  int serial = 0;
  int holders = 0;              // Of `workers`: have the state of the job.
  std::int64_t kept_steps = 0;  // The most that a worker of this node had the state of.
  int min_ranks = 0;            // The job computes in no round with fewer.
};                              // Offer this node, and a store no round has used yet.
struct SendMessage {
  rendezvous::AgentMessage message;
};
struct StartWorkers {
  rendezvous::Seat seat;
};
struct SignalWorkers {
  // A leaver has ended its part in its group by itself, and so is about to end.
  enum class Targets { kAll, kAllButLeavers, kThoseLeavers };
  int signal = 0;
  int lost_rank = -1;    // The rank that ended and so caused it, or -1: workers are notified first.
  std::string why = {};  // What became of it.
  Targets targets = Targets::kAll;
};  // To the process group of each that lives.
// One more process, in a place that has none. It waits for its seat once it is ready.
struct SpawnWorker {
  int local_rank = 0;
  int restart_count = 0;
};
// Living workers, in the order of their ranks, which begin with the seat's base_rank.
struct SeatWorkers {
  rendezvous::Seat seat;
  std::vector<int> local_ranks;
};
// The round is over for all workers that hold a seat of it: at once.
struct FenceWorkers {
  int round = 0;
  int lost_rank = -1;
  std::string why = {};
};
// The same, at the next boundary between steps.
struct AnnounceChange {
  int round = 0;
  std::string why;
};
// SIGKILL, to these only.
struct KillWorkers {
  std::vector<int> local_ranks;
};
struct CleanUp {};         // All workers are gone: kill what they left behind, close the store.
struct AbandonWorkers {};  // SIGKILL does not end them: log which, and forget them.
struct LogLine {
  enum class Level { kInfo, kWarning, kError } level = Level::kInfo;
  std::string text;
  // For a person to read once: a death is also in what follows from it, the restart or the verdict.
  enum class About { kOther, kDeath, kRestart } about = About::kOther;
};
struct Exit {
  int status = 0;
  std::optional<rendezvous::Verdict> verdict;
};
using Action = std::variant<SendJoin, SendMessage, StartWorkers, SpawnWorker, SeatWorkers,
                            FenceWorkers, AnnounceChange, KillWorkers, SignalWorkers, CleanUp,
                            AbandonWorkers, LogLine, Exit>;

std::string to_string(const Action& action);  // One line of a trace; tests compare these.

}  // namespace ddprun::agent
