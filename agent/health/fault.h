#pragma once
// What kind of failure a worker's end was, judged from its status and its last words. Pure. Used by
// the agent for each worker that failed; rendezvous/run/verdict.h acts on it.

#include <string>
#include <string_view>
#include <vector>

#include "common/progress_page.h"
#include "common/worker_death.h"

namespace ddprun::agent {

// `words`: the last that the worker printed, see last_words.h. `oom_killed`: the kernel's OOM
// killer has been at work while the worker ran.
Fault classify(const WorkerDeath& death, std::string_view words, bool oom_killed);

// The rank that was lost or did not come according to `words`; -1 if they name none.
int rank_blamed(std::string_view words);

// What is left of a worker on its page (common/progress_page.h) when it has ended.
struct WorkerFate {
  std::int64_t collective = 0;  // The last of the whole job that it entered; 0: none.
  std::int64_t steps = 0;       // That it had synchronised.
  ProgressPage::Failure failure = ProgressPage::kNone;
  int peer = -1;                // The rank that its SDK blames.
  std::string work{};           // What it was computing; empty: nothing in particular, or unknown.
  bool can_skip = false;        // Its job can do without that.
  bool left = false;            // It had ended its part in its group by itself.
  std::int64_t kept_steps = 0;  // Of the state that it had as a rank of an elastic job.
};

// Adds to `death` what the page knows better than words: why its last collective failed, whatever
// the program printed about it, and how far it had come.
void add_fate(const WorkerFate& fate, WorkerDeath& death);

// Adds to `death` what the worker was computing, if that may be the reason of its end: a signal
// from outside has nothing to do with it. `is_its_doing`: the kernel ended it because memory was
// short, or we did because it was stuck.
void add_work(const WorkerFate& fate, bool is_its_doing, WorkerDeath& death);

// `why`: of a worker that --on-stall kill has ended, else empty. Its last words are only what it
// made of our signal.
void add_stall(const std::string& why, WorkerDeath& death);

// Whether these lines end with the report of an uncaught exception, which a program prints just
// before it ends, although its end may take a while.
bool ends_in_exception(const std::vector<std::string>& lines);

}  // namespace ddprun::agent
