#pragma once
// The run's record in the history of this machine (launcher/history/history.h), at its start and at
// its end. Called by launch.cc.

#include "launcher/guard/guardian.h"
#include "launcher/history/history.h"
#include "launcher/run/node.h"

namespace ddprun::launcher {

// "ddprun --nproc-per-node 8 train.py --epochs 3": what was typed, and what variables stand for;
// its beginning, if it is long.
std::string command_text(const Options& options);

// Nothing is kept where the run has no folder for it.
KeptRun remember_start(const NodeContext& context);

// A signal has come. If it is one that ends the run, the record has it from now on.
void remember_signal(KeptRun& kept, const Options& options, int signal);

// What an agent that was killed could not leave.
void remember_killed(KeptRun& kept, const AgentKilled& killed, const char* kind);

// Reads what the agents have left in the run's folder, which goes afterwards.
void collect_endings(KeptRun& kept, const NodeContext& context);

void remember_end(KeptRun& kept, const NodeContext& context, int exit_code);

}  // namespace ddprun::launcher
