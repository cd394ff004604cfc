#pragma once
// What is to be remembered of a run once its agents are gone: how it ended, and what its workers
// wrote last. The launcher takes it into the history (ddprunctl history). Called by Agent at its
// end.

#include <map>
#include <optional>
#include <string>

#include "agent/output/output.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::agent {

// Of the whole run; the agent that speaks for it knows.
struct RunEnding {
  std::string run_id;
  rendezvous::Verdict verdict;
  std::optional<rendezvous::Seat> seat;  // The last that the node had.
  std::string account;                   // As JSON; empty: none came.
};

// `ranks`: by local rank, of all workers that there were; -1: it never had one.
void write_ending(const std::string& path, const Output& output, const std::map<int, int>& ranks,
                  const std::optional<RunEnding>& of_run);

}  // namespace ddprun::agent
