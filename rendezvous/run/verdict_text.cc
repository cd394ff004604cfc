// What to try after a failure.

#include <csignal>
#include <cstring>
#include <nlohmann/json.hpp>

#include "rendezvous/run/status.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::rendezvous {
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
