#pragma once
// A run that has just ended, as its record is made of it. Pure.

#include "common/history/run_record.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::rendezvous {

// The clock on the wall is the shell's: it adds `record.started` and `record.verdict`.
struct EndedRun {
  RunRecord record;
  Verdict verdict;
};

}  // namespace ddprun::rendezvous
