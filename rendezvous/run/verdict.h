#pragma once
// The text of a verdict: one paragraph on what failed first, where, and what to do next, and the
// same as JSON. Pure.

#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/protocol/wire.h"

namespace ddprun::rendezvous {

// What a failed run is put down to.
struct FirstCause {
  WorkerDeath death;
  int exit_code = 1;    // What the run ends with.
  std::string witness;  // If the death was our doing: the rank that accused it, and its text.
};

// Which of the deaths, in the order of their reports and not empty, was the cause of the others.
//
// That order is happens-before but for one thing: a rank that loses a peer may be gone before that
// peer, because the peer's interpreter still tidies up. So a death that names another rank points
// at that one, and a death that only reports "I lost a peer" gives way to one that explains more.
// Clocks of hosts are never compared.
//
// `successes`: the ranks of the same round that had exited with 0. One that others still waited for
// in a collective is the cause of their end.
FirstCause first_cause(const std::vector<WorkerDeath>& deaths,
                       const std::vector<WorkerDeath>& successes = {});

// Whether one of the deaths, or the success of a rank that a victim names, explains the others.
bool shows_cause(const std::vector<WorkerDeath>& deaths, const std::vector<WorkerDeath>& successes);
// Whether ranks have lost a peer, and none of the deaths explains it: the peer may have left its
// group, and be about to end.
bool lacks_cause(const std::vector<WorkerDeath>& deaths, const std::vector<WorkerDeath>& successes);

// What to try; empty if there is no advice. `one_machine`: all ranks were on the same.
std::string advice(const WorkerDeath& death, bool one_machine = false);

// What else is known of a run with failed workers.
struct RunHistory {
  std::vector<WorkerDeath> successes{};    // Of its last round.
  std::vector<WorkerDeath> past{};         // The first causes of the rounds before that failed.
  std::vector<std::string> unreachable{};  // What nodes have not reached in its last round.
};

// Whether `death` came from a piece of work that has ended another process before: the next process
// that computes it would end, too.
bool is_poison(const std::vector<WorkerDeath>& past, const WorkerDeath& death);
// "step 7, shard 3", without its samples.
std::string piece_of(const std::string& work);

// What is kept of a first cause while the run goes on: enough to recognise it.
WorkerDeath remembered(const FirstCause& cause);

// The verdict on a run with failed workers. `deaths` is in the order of the reports and not empty.
Verdict worker_verdict(const std::vector<WorkerDeath>& deaths, int restart_count, int max_restarts,
                       const RunHistory& history = {});

// Its text for a terminal that has just shown the last words: refers to them instead of repeating
// them.
std::string without_last_words(const Verdict& verdict);

// The verdict as a file for programs (docs/verdict.md). Its "message" is what PyTorch's own agent
// writes and reads. `timestamp` is for people: seconds since 1970 on the writing host.
std::string verdict_json(const Verdict& verdict, std::string_view run_id, std::int64_t timestamp);

}  // namespace ddprun::rendezvous
