#include "rendezvous/run/verdict.h"

#include <algorithm>
#include <cctype>
#include <csignal>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "common/assert.h"
#include "common/text/figures.h"
#include "common/text/words.h"
#include "rendezvous/run/status.h"

namespace ddprun::rendezvous {
namespace {

constexpr char kLastWords[] = "\nIts last words:\n";
constexpr std::size_t kVictimsMax = 64;  // More are counted, not listed.

std::string name_of(const WorkerDeath& death) {
  return "rank " + std::to_string(death.rank) + " (local rank " + std::to_string(death.local_rank) +
         (death.pid > 0 ? ", pid " + std::to_string(death.pid) : "") + ") on " + death.host;
}

// "ranks 1, 5-6 and 40 more".
std::string ranks_text(std::vector<int> ranks) {
  constexpr std::size_t kListed = 8;  // Ranges.
  std::sort(ranks.begin(), ranks.end());
  std::size_t listed = 0, ranges = 0;
  for (; listed < ranks.size(); ++listed) {
    const bool begins = listed == 0 || ranks[listed] != ranks[listed - 1] + 1;
    if (begins && ++ranges > kListed) break;
  }
  const std::size_t more = ranks.size() - listed;
  ranks.resize(listed);
  return (ranks.size() == 1 && more == 0 ? "rank " : "ranks ") + ranges_text(ranks) +
         (more > 0 ? " and " + std::to_string(more) + " more" : "");
}

std::string victims_text(const std::vector<WorkerDeath>& victims) {
  std::vector<int> own;
  for (const WorkerDeath& victim : victims) {
    if (!victim.stopped_by_us) own.push_back(victim.rank);
  }
  std::sort(own.begin(), own.end());
  const std::size_t stopped = victims.size() - own.size();
  std::string text;
  if (!own.empty()) {
    text += " " + std::to_string(own.size()) + " more failed after it (" + ranks_text(own) + ").";
  }
  if (stopped > 0)
    text += " " + std::to_string(stopped) + (stopped == 1 ? " other was" : " others were") +
            " stopped by ddprun.";
  return text;
}

// The cause is known from others: this rank did not fail, or not of itself.
std::string accusation_text(const FirstCause& cause) {
  const std::string name = name_of(cause.death);
  switch (cause.death.fault) {
    case Fault::kLeftEarly:
      if (cause.death.stopped_by_us) {
        return name +
               " left the job while others still needed it, and had not ended when ddprun "
               "stopped it: " +
               cause.witness + ".";
      }
      return name + " ended with 0 while others still needed it: " + cause.witness + ".";
    case Fault::kAborted: return name + " called abort(): " + cause.witness + ".";
    case Fault::kMismatch: return name + " disagreed with the other ranks: " + cause.witness + ".";
    default: {
      const std::string& evidence = cause.death.evidence;
      return name + " made no further progress: " + cause.witness +
             (evidence.empty() ? "." : "; " + evidence + ".");
    }
  }
}

std::string cause_text(const FirstCause& cause) {
  if (!cause.witness.empty()) return accusation_text(cause);
  const WorkerDeath& death = cause.death;
  if (never_ran(death)) return name_of(death) + " could not be started.";
  std::string text = name_of(death) + " failed first: it ";
  if (death.fault == Fault::kAborted) text += "called abort() and ";
  text += cut_short(death) ? "was about to end with an error" : how_it_ended(death);
  return text + (death.evidence.empty() ? "." : ": " + death.evidence + ".");
}

// A host's name ends with "/2" if several nodes share a machine.
std::string machine_of(const WorkerDeath& death) {
  return death.host.substr(0, death.host.find('/'));
}

bool on_machine(const std::vector<WorkerDeath>& deaths, const std::string& machine) {
  return std::all_of(deaths.begin(), deaths.end(),
                     [&](const WorkerDeath& death) { return machine_of(death) == machine; });
}

// Of its own making, wherever it runs.
bool is_programs(Fault fault) {
  switch (fault) {
    case Fault::kExit:
    case Fault::kCrash:
    case Fault::kStackOverflow:
    case Fault::kException:
    case Fault::kSyntaxError:
    case Fault::kMismatch:
    case Fault::kAborted:
    case Fault::kGpuAssert:
    case Fault::kGpuAccess:
    case Fault::kGpuMemory:
    case Fault::kLeftEarly: return true;
    default: return false;
  }
}

// What one host may have and another not.
bool is_of_host(Fault fault) {
  return fault == Fault::kNoFile || fault == Fault::kImportError ||
         fault == Fault::kMissingLibrary || fault == Fault::kCannotStart;
}

// Of several machines only that of the cause has reported such a failure: the others have what it
// lacks, as far as they had come.
std::string lacking_text(const std::vector<WorkerDeath>& deaths, const WorkerDeath& cause) {
  const std::string machine = machine_of(cause);
  const bool elsewhere = std::any_of(deaths.begin(), deaths.end(), [&](const WorkerDeath& death) {
    return death.fault == cause.fault && machine_of(death) != machine;
  });
  if (!is_of_host(cause.fault) || elsewhere) return "";
  return "No other host has reported this: check that " + machine +
         " has the same files, mounts and environment as the others.";
}

// The last line without its numbers: addresses, times and steps differ each time.
std::string essence(const std::string& words) {
  constexpr std::size_t kLongest = 300;
  const std::size_t end = words.find_last_not_of('\n');
  const std::size_t newline = words.rfind('\n', end);
  std::string line = words.substr(newline == std::string::npos ? 0 : newline + 1, kLongest);
  std::erase_if(line, [](unsigned char c) { return std::isdigit(c) != 0; });
  return line;
}

// Such as a store or a peer that cannot be reached. Of a program's own errors its words decide.
bool may_be_of_network(const WorkerDeath& death) {
  switch (death.fault) {
    case Fault::kPeerLost:
    case Fault::kTimedOut:
    case Fault::kStuck:
    case Fault::kNccl: return true;
    case Fault::kUnknown:
    case Fault::kExit:
    case Fault::kException:
    case Fault::kCrash:
    case Fault::kAborted: break;
    default: return false;
  }
  std::string words = death.detail;
  std::transform(words.begin(), words.end(), words.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  constexpr std::string_view kWords[] = {"time out", "timed out", "timeout",  "unreachable",
                                         "no route", "refused",   "reset by", "connect",
                                         "tcpstore", "gloo",      "nccl",     "peer"};
  return std::any_of(std::begin(kWords), std::end(kWords),
                     [&](std::string_view word) { return words.find(word) != words.npos; });
}

std::string unreachable_text(const std::vector<std::string>& unreachable) {
  std::string text;
  for (const std::string& line : unreachable) text += (text.empty() ? "" : " ") + line + ".";
  return text;
}

// Programs that do not embed the SDK cannot report which peer they lost.
std::string gone_text(const std::vector<WorkerDeath>& successes) {
  std::vector<int> ranks;
  for (const WorkerDeath& gone : successes) ranks.push_back(gone.rank);
  std::sort(ranks.begin(), ranks.end());
  return "It lost a peer, and no other rank has failed, but " + ranks_text(ranks) +
         " had already ended with 0: do the ranks have unequal numbers of batches?";
}

std::string repetition(const std::vector<WorkerDeath>& past, const WorkerDeath& now,
                       bool one_machine) {
  if (past.empty()) return "";
  const bool same = std::all_of(past.begin(), past.end(), [&](const WorkerDeath& death) {
    return death.rank == now.rank && death.fault == now.fault && death.signal == now.signal &&
           death.exit_code == now.exit_code && death.detail == essence(now.detail);
  });
  if (same && is_programs(now.fault)) {
    return "It was the same rank with the same error each time: check the program or its data, "
           "not the machine.";
  }
  if (one_machine || !on_machine(past, machine_of(now))) return "";
  return "It was on " + machine_of(now) + " each time: check that host.";
}

// Also if it has ended only one process: a person may want to inspect these samples.
std::string poison_text(const std::vector<WorkerDeath>& past,
                        const std::vector<WorkerDeath>& deaths) {
  for (const WorkerDeath& death : deaths) {
    if (!is_poison(past, death)) continue;
    const auto before = std::find_if(past.begin(), past.end(),
                                     [&](const auto& one) { return one.work == death.work; });
    return "It computed " + death.work + ". The same has ended " + name_of(*before) +
           " before: it would end every process that computes it. Check these samples.";
  }
  return "";
}

}  // namespace

std::string without_last_words(const Verdict& verdict) {
  const std::size_t words = verdict.text.find(kLastWords);
  if (words == std::string::npos) return verdict.text;
  return verdict.text.substr(0, words) + " Its last words are above.";
}

bool is_poison(const std::vector<WorkerDeath>& past, const WorkerDeath& death) {
  return !death.work.empty() && std::any_of(past.begin(), past.end(), [&](const auto& before) {
    return before.work == death.work;
  });
}

std::string piece_of(const std::string& work) { return work.substr(0, work.find(':')); }

WorkerDeath remembered(const FirstCause& cause) {
  WorkerDeath death = cause.death;
  death.detail = essence(death.detail);
  death.evidence.clear();
  return death;
}

Verdict worker_verdict(const std::vector<WorkerDeath>& deaths, int restart_count, int max_restarts,
                       const RunHistory& history) {
  const FirstCause cause = first_cause(deaths, history.successes);
  Verdict verdict;
  verdict.kind = Verdict::Kind::kWorkerFailed;
  verdict.exit_code = cause.exit_code;
  verdict.first_cause = cause.death;
  std::vector<WorkerDeath> victims;
  for (const WorkerDeath& death : deaths) {
    if (death.rank != cause.death.rank) victims.push_back(death);
  }
  const bool one_machine = on_machine(deaths, machine_of(cause.death)) &&
                           on_machine(history.successes, machine_of(cause.death));
  std::string text = cause_text(cause) + victims_text(victims);
  verdict.again = poison_text(history.past, deaths);
  if (verdict.again.empty()) {
    verdict.again = repetition(history.past, cause.death, one_machine);
    if (max_restarts > 0) {
      verdict.restarts =
          std::to_string(restart_count) + " of " + std::to_string(max_restarts) + " were used";
    }
  }
  if (!verdict.restarts.empty()) text += " No restart was left: " + verdict.restarts + ".";
  if (!verdict.again.empty()) text += " " + verdict.again;
  verdict.advice = advice(cause.death, one_machine);
  if (cause.death.fault == Fault::kPeerLost && !history.successes.empty()) {
    verdict.advice = gone_text(history.successes);
  }
  if (!history.unreachable.empty() && may_be_of_network(cause.death)) {
    const bool knows_no_more =
        cause.death.fault == Fault::kPeerLost || cause.death.fault == Fault::kTimedOut;
    const std::string general = knows_no_more ? "" : verdict.advice;
    verdict.advice = unreachable_text(history.unreachable);
    if (!general.empty()) verdict.advice += " " + general;
  }
  if (!one_machine) {
    const std::string lacking = lacking_text(deaths, cause.death);
    if (!lacking.empty()) verdict.advice += (verdict.advice.empty() ? "" : " ") + lacking;
  }
  if (!verdict.advice.empty()) text += " " + verdict.advice;
  if (!cause.death.detail.empty()) text += kLastWords + cause.death.detail;
  verdict.text = std::move(text);
  if (victims.size() > kVictimsMax) victims.resize(kVictimsMax);
  verdict.victims = std::move(victims);
  return verdict;
}

// Which of several deaths was the cause of the others.

namespace {

bool own_doing(const WorkerDeath& death) { return !death.stopped_by_us || death.was_failing; }

// It only shows that another rank is gone, or does not come.
bool is_victim(const WorkerDeath& death) {
  return death.fault == Fault::kPeerLost || death.fault == Fault::kTimedOut;
}

const WorkerDeath* death_of(const std::vector<WorkerDeath>& deaths, int rank) {
  const auto found = std::find_if(deaths.begin(), deaths.end(),
                                  [&](const WorkerDeath& death) { return death.rank == rank; });
  return found == deaths.end() ? nullptr : &*found;
}

const WorkerDeath* waiter_for(const std::vector<WorkerDeath>& deaths, int rank) {
  const auto found = std::find_if(deaths.begin(), deaths.end(), [&](const WorkerDeath& death) {
    return own_doing(death) && death.fault == Fault::kTimedOut && death.blames == rank;
  });
  return found == deaths.end() ? nullptr : &*found;
}

// What `witness` reports of a rank, if that rank's own end explains less or was our doing.
FirstCause accused(const WorkerDeath& death, Fault fault, const WorkerDeath& witness,
                   std::string words) {
  const bool own_end = own_doing(death) && !cut_short(death) && exit_status(death) != 0;
  FirstCause cause{.death = death,
                   .exit_code = std::max(1, exit_status(own_end ? death : witness)),
                   .witness = std::move(words)};
  cause.death.fault = fault;
  return cause;
}

std::string reported_by(const WorkerDeath& witness, const std::string& what) {
  constexpr std::size_t kShown = 300;
  const std::string text = "rank " + std::to_string(witness.rank) + " " + what;
  const std::string detail(first_line(witness.detail).substr(0, kShown));
  return detail.empty() ? text : text + " (" + detail + ")";
}

FirstCause stuck(const WorkerDeath& death, const WorkerDeath& witness) {
  return accused(death, Fault::kStuck, witness, reported_by(witness, "gave up waiting for it"));
}

// "step 12 (collective #40)", as far as it is known; else empty.
std::string place(const WorkerDeath& death, std::int64_t step) {
  const std::string collective =
      death.collective > 0 ? "collective #" + std::to_string(death.collective) : "";
  if (death.steps == 0) return collective;
  return "step " + std::to_string(step) + (collective.empty() ? "" : " (" + collective + ")");
}

FirstCause left_early(const WorkerDeath& gone, const WorkerDeath& witness) {
  const std::string last = place(gone, gone.steps), waits = place(witness, witness.steps + 1);
  std::string text = last.empty() ? "" : "its last was " + last + ", and ";
  text += "rank " + std::to_string(witness.rank) + " waited for it";
  if (!waits.empty()) text += " in " + waits;
  return accused(gone, Fault::kLeftEarly, witness, std::move(text));
}

// The rank that most others disagree with; -1: none, or there is another as good.
int odd_rank(const std::vector<WorkerDeath>& deaths) {
  std::map<int, int> votes;
  for (const WorkerDeath& death : deaths) {
    if (death.fault == Fault::kMismatch && death.blames >= 0) ++votes[death.blames];
  }
  int odd = -1, most = 0;
  for (const auto& [rank, count] : votes) {
    if (count == most) odd = -1;
    if (count > most) odd = rank, most = count;
  }
  return odd;
}

// The ranks do not agree: the first rank to report it is rarely the one that is wrong.
std::optional<FirstCause> mismatched(const std::vector<WorkerDeath>& deaths,
                                     const WorkerDeath& first) {
  const WorkerDeath* odd = death_of(deaths, odd_rank(deaths));
  if (!odd || odd->rank == first.rank) return std::nullopt;
  return accused(*odd, Fault::kMismatch, first, reported_by(first, "saw it"));
}

// What a victim reports of a rank that did not fail itself.
std::optional<FirstCause> accusation(const std::vector<WorkerDeath>& deaths,
                                     const std::vector<WorkerDeath>& successes,
                                     const WorkerDeath& victim) {
  const WorkerDeath* ended = death_of(successes, victim.blames);
  if (ended && ended->fault != Fault::kAborted) return left_early(*ended, victim);
  const WorkerDeath* blamed = ended ? ended : death_of(deaths, victim.blames);
  if (!blamed) return std::nullopt;
  if (blamed->fault == Fault::kAborted && (ended || !own_doing(*blamed))) {
    return accused(*blamed, Fault::kAborted, victim, reported_by(victim, "saw it"));
  }
  if (own_doing(*blamed)) return std::nullopt;
  if (blamed->fault == Fault::kLeftEarly) return left_early(*blamed, victim);
  if (const WorkerDeath* witness = waiter_for(deaths, blamed->rank)) {
    return stuck(*blamed, *witness);
  }
  return std::nullopt;
}

}  // namespace

bool shows_cause(const std::vector<WorkerDeath>& deaths,
                 const std::vector<WorkerDeath>& successes) {
  return std::any_of(deaths.begin(), deaths.end(), [&](const WorkerDeath& death) {
    return own_doing(death) && (!is_victim(death) || death_of(successes, death.blames));
  });
}

bool lacks_cause(const std::vector<WorkerDeath>& deaths,
                 const std::vector<WorkerDeath>& successes) {
  const bool any_victim = std::any_of(deaths.begin(), deaths.end(), [](const WorkerDeath& death) {
    return own_doing(death) && death.fault == Fault::kPeerLost;
  });
  return any_victim && !shows_cause(deaths, successes);
}

FirstCause first_cause(const std::vector<WorkerDeath>& deaths,
                       const std::vector<WorkerDeath>& successes) {
  DDPRUN_ASSERT(!deaths.empty());
  const auto reported = std::find_if(deaths.begin(), deaths.end(), own_doing);
  const WorkerDeath* first = reported == deaths.end() ? &deaths.front() : &*reported;
  if (first->fault == Fault::kMismatch) {
    if (const auto cause = mismatched(deaths, *first)) return *cause;
  }
  if (first->fault == Fault::kWrongResult && first->blames >= 0) {  // All report whom it is.
    const WorkerDeath* wrong = death_of(deaths, first->blames);
    if (wrong && wrong->fault != Fault::kWrongResult) {
      return accused(*wrong, Fault::kWrongResult, *first, reported_by(*first, "found it"));
    }
    if (wrong) first = wrong;
  }
  std::set<int> seen{first->rank};
  while (is_victim(*first) && first->blames >= 0) {
    if (const auto cause = accusation(deaths, successes, *first)) return *cause;
    const WorkerDeath* blamed = death_of(deaths, first->blames);
    if (!blamed || !own_doing(*blamed) || !seen.insert(blamed->rank).second) break;
    first = blamed;
  }
  if (is_victim(*first)) {
    const auto culprit = std::find_if(deaths.begin(), deaths.end(), [](const WorkerDeath& death) {
      return own_doing(death) && !is_victim(death);
    });
    if (culprit != deaths.end()) first = &*culprit;
  }
  const int code = cut_short(*first) ? 1 : exit_status(*first);
  return {.death = *first, .exit_code = std::max(1, code), .witness = {}};
}

// What to try after a failure.

namespace {

// What to give advice about. If no agent has judged the death, its status does; an uncaught C++
// exception ends in abort(), so a core file shows where it came from.
Fault judged(const WorkerDeath& death) {
  const bool thrown = death.fault == Fault::kException && is_crash(death.signal);
  if (death.fault != Fault::kUnknown && !thrown) return death.fault;
  if (is_crash(death.signal)) return Fault::kCrash;
  if (death.signal != 0) return Fault::kSignal;
  return death.exit_code == 126 || death.exit_code == 127 ? Fault::kCannotStart : Fault::kExit;
}

// What to try depends on NCCL's last message, too.
std::string of_nccl(const std::string& words) {
  if (words.find("Duplicate GPU detected") != std::string::npos) {
    return "Two ranks use the same GPU: each must call torch.cuda.set_device() with its "
           "LOCAL_RANK, "
           "and no more workers than GPUs may be started (--nproc-per-node gpu).";
  }
  if (words.find("/dev/shm") != std::string::npos) {
    return "See the size of /dev/shm on that host (df -h /dev/shm; docker run --shm-size).";
  }
  return "NCCL_DEBUG=INFO shows what NCCL did before it failed; \"ddprun doctor\" checks GPUs and "
         "links.";
}

std::string of_fault(const WorkerDeath& death, Fault fault, bool one_machine) {
  switch (fault) {
    case Fault::kGpuMemory:
      return death.evidence.empty() || death.evidence.starts_with("no other")
                 ? "Use a smaller batch or model, or checkpoint activations; against fragmentation "
                   "set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True."
                 : "End the other processes that hold memory of that GPU, or use another GPU; else "
                   "use a smaller batch or model.";
    case Fault::kGpuAssert:
      return "An index or a label is probably out of range. CUDA reports it late: with "
             "CUDA_LAUNCH_BLOCKING=1 the traceback shows the call.";
    case Fault::kGpuAccess:
      return "CUDA reports it late: with CUDA_LAUNCH_BLOCKING=1 the traceback shows the call; "
             "compute-sanitizer finds the address.";
    case Fault::kGpuBroken:
      return "Suspect the GPU or the machine, not the program: see nvidia-smi -q and dmesg there, "
             "leave that host out, and reset the GPU. \"ddprun doctor\" checks it.";
    case Fault::kNoGpu:
      return "See nvidia-smi and CUDA_VISIBLE_DEVICES on that host, and whether that PyTorch is "
             "made for its GPUs and driver; --nproc-per-node gpu starts a worker per GPU.";
    case Fault::kNccl: return of_nccl(death.detail);
    case Fault::kNcclVersion:
      return "Install the same PyTorch, and so the same NCCL, on all hosts; see "
             "torch.cuda.nccl.version().";
    case Fault::kAddressInUse:
      return "Let the program choose a free port (0), or end the process that listens there: ss "
             "-ltnp shows it. Under ddprun MASTER_PORT is the store's: use init_method=\"env://\".";
    case Fault::kNoFile: return "See whether that path is there on that host.";
    case Fault::kQuota:
      return "The disk has space, but not for this user: see quota -s, or lfs quota, and remove "
             "old checkpoints.";
    case Fault::kTimeLimit:
      return "Ask for more time, or save a checkpoint before: the batch system can send a signal "
             "ahead of the limit (sbatch --signal), see --preempt-signal.";
    case Fault::kOutOfMemory:
      return "Give the job more memory, or let it use less: fewer data loader processes, a smaller "
             "batch.";
    case Fault::kNoMemory: return "See ulimit -v and the memory of that host.";
    case Fault::kNoSpace: return "Free space on that host's disk; see df -h and df -i.";
    case Fault::kNoDescriptors:
      return "See ulimit -n, and check for descriptors that are never closed.";
    case Fault::kNoProcesses: return "See ulimit -u, and the pids.max of its cgroup.";
    case Fault::kStackOverflow: return "See ulimit -s, and check for endless recursion.";
    case Fault::kMissingLibrary: return "See ldd and LD_LIBRARY_PATH on that host.";
    case Fault::kImportError: return "See which python3 runs there, and its sys.path.";
    case Fault::kPeerLost: {
      const char* nccl = death.detail.find("NCCL") == std::string::npos
                             ? ""
                             : " NCCL_DEBUG=INFO shows which connection it was.";
      return std::string("It lost a peer, but no other rank has failed") +
             (one_machine ? "." : ": check the network between them.") + nccl;
    }
    case Fault::kTimedOut: return "It gave up waiting for the other ranks.";
    case Fault::kStuck: return "While a rank is stuck, a debugger or py-spy shows where.";
    case Fault::kMismatch:
      return "All ranks must call the same collectives in the same order, with the same shapes, "
             "types and options.";
    case Fault::kWrongResult:
      return "Take that host out of use and test its processor, memory and GPU; an audit of the "
             "same job finds out whether it happens again.";
    case Fault::kCrash: return "The program crashed; a core file or a debugger shows where.";
    case Fault::kCannotStart:
      if (never_ran(death)) {
        return "The program could not be started; check its path and its permissions on that host.";
      }
      return "A shell there found no such command, or may not execute it: see its last line, and "
             "the PATH and the permissions on that host.";
    case Fault::kLeftEarly:
      return "Do the ranks have unequal numbers of batches? See uneven_inputs and join().";
    default: return "";
  }
}

}  // namespace

std::string advice(const WorkerDeath& death, bool one_machine) {
  const Fault fault = judged(death);
  if (never_ran(death) && death.detail.find("the environment has ") != std::string::npos) {
    return "Make the environment or the command line smaller: unset what the program does not "
           "need, pass long lists in a file, or raise ulimit -s on that host.";
  }
  if (never_ran(death) && death.detail.find("/dev/null, which is ") != std::string::npos) {
    return "Give that host's root or container a /dev with null in it.";
  }
  if (never_ran(death) && fault != Fault::kCannotStart) {
    return "Raise that limit on that host, or start fewer workers there.";
  }
  if (fault == Fault::kSignal && death.signal == SIGKILL) {
    return "SIGKILL comes from outside the program: a batch system's limit, a person, or the "
           "kernel's out-of-memory killer, of which there is no sign here (see dmesg).";
  }
  if (fault == Fault::kSignal && death.signal == SIGXCPU) {
    return "Its limit of processor time is used up: see ulimit -t, and the batch system's.";
  }
  if (fault == Fault::kSignal && death.signal == SIGXFSZ) {
    return "It wrote a file that is larger than its limit: see ulimit -f.";
  }
  return of_fault(death, fault, one_machine);
}

// The JSON form of a verdict.

namespace {

using nlohmann::ordered_json;

ordered_json to_json(const WorkerDeath& death) {
  ordered_json object = {{"rank", death.rank},
                         {"local_rank", death.local_rank},
                         {"host", death.host},
                         {"pid", death.pid}};
  if (death.signal != 0) {
    const char* name = ::sigabbrev_np(death.signal);
    object["signal"] = death.signal;
    object["signal_name"] = name ? "SIG" + std::string(name) : std::to_string(death.signal);
  } else {
    object["exit_code"] = death.exit_code;
  }
  // One that is stuck does not end by itself.
  object["stopped_by_ddprun"] = death.stopped_by_us || death.fault == Fault::kStuck;
  object["fault"] = fault_name(death.fault);
  object["evidence"] = death.evidence;
  object["last_words"] = death.detail;
  if (death.collective > 0) object["collective"] = death.collective;
  if (death.steps > 0) object["steps"] = death.steps;
  if (!death.work.empty()) object["work"] = death.work;
  return object;
}

// Averages, in seconds.
ordered_json to_json(const StartTotals::Kind& kind) {
  ordered_json object = {{"processes", kind.processes}};
  for (std::size_t i = 0; i < kStartParts; ++i) {
    const auto part = static_cast<StartPart>(i);
    if (const auto mean = kind.mean(part)) object[std::string(name_of(part)) + "_s"] = *mean;
  }
  return object;
}

ordered_json to_json(const ShardTotals& shards) {
  return {{"fewest", shards.fewest},
          {"most", shards.most},
          {"won_s", static_cast<double>(shards.won_us) / 1e6}};
}

ordered_json to_json(const LedgerTotals& ledger) {
  const auto seconds = [](TimeParts::Time time) {
    return std::chrono::duration<double>(time).count();
  };
  ordered_json parts = ordered_json::object();
  for (std::size_t i = 0; i < kTimeParts; ++i) {
    parts[name_of(static_cast<TimePart>(i))] = seconds(ledger.parts.times[i]);
  }
  const ordered_json goodput =
      ledger.has_goodput() ? ordered_json(ledger.goodput()) : ordered_json(nullptr);
  ordered_json object = {{"wall_s", seconds(ledger.wall)},
                         {"places", ledger.places},
                         {"goodput", goodput},
                         {"changes", ledger.changes},
                         {"steps_repeated", ledger.repeated},
                         {"parts_s", std::move(parts)}};
  object["starts"] = {{"cold", to_json(ledger.starts.cold)},
                      {"preloaded", to_json(ledger.starts.preloaded)}};
  if (ledger.shards.ranks > 0) object["shards"] = to_json(ledger.shards);
  return object;
}

}  // namespace

std::string verdict_json(const Verdict& verdict, std::string_view run_id, std::int64_t timestamp) {
  const std::string words = verdict.first_cause ? verdict.first_cause->detail : "";
  ordered_json object = {{"kind", kind_name(verdict.kind)},
                         {"run_id", run_id},
                         {"exit_code", verdict.exit_code},
                         {"text", verdict.text}};
  if (verdict.first_cause) {
    object["advice"] = verdict.advice;
    object["first_cause"] = to_json(*verdict.first_cause);
  }
  object["victims"] = ordered_json::array();
  for (const WorkerDeath& death : verdict.victims) object["victims"].push_back(to_json(death));
  if (verdict.ledger) object["ledger"] = to_json(*verdict.ledger);
  object["message"] = {{"message", words.empty() ? verdict.text : words},
                       {"errorCode", verdict.exit_code},
                       {"extraInfo", {{"timestamp", std::to_string(timestamp)}}}};
  // Last words may hold any bytes; JSON text may not.
  return object.dump(2, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace ddprun::rendezvous
