#pragma once
// What kind of failure a worker's end was, judged from its status and its last words. Pure. Used by
// the agent for each worker that failed; rendezvous/verdict.h acts on it.

#include <string>
#include <string_view>
#include <vector>

#include "rendezvous/wire.h"

namespace ddprun::agent {

// `words`: what the worker said last, see last_words.h. `oom_killed`: the kernel's OOM killer has
// been at work while the worker ran.
rendezvous::Fault classify(const rendezvous::WorkerDeath& death, std::string_view words,
                           bool oom_killed);

// The rank that `words` say was lost or did not come; -1 if they name none.
int rank_blamed(std::string_view words);

// Whether the last of these lines end a report of an exception that nobody caught: what a program
// says just before it ends, although its end may take a while.
bool ends_in_exception(const std::vector<std::string>& lines);

}  // namespace ddprun::agent
