// The words for faults, on the wire and in the JSON form of a verdict.

#include <array>

#include "rendezvous/protocol/fault_text.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::array<const char*, 32> kNames = {
    "unknown",       "exit",         "signal",       "crash",          "stack_overflow",
    "exception",     "import_error", "syntax_error", "cannot_start",   "missing_library",
    "out_of_memory", "no_memory",    "no_space",     "no_descriptors", "peer_lost",
    "timed_out",     "stuck",        "mismatch",     "aborted",        "left_early",
    "no_processes",  "gpu_memory",   "gpu_assert",   "gpu_access",     "gpu_broken",
    "no_gpu",        "nccl",         "nccl_version", "address_in_use", "no_file",
    "quota",         "time_limit"};
static_assert(kNames.size() == static_cast<std::size_t>(kLastFault) + 1);

const char* what_of(Fault fault) {
  switch (fault) {
    case Fault::kOutOfMemory: return "out of memory";
    case Fault::kStackOverflow: return "stack overflow";
    case Fault::kStuck: return "stuck";
    case Fault::kNoMemory: return "memory was refused";
    case Fault::kNoSpace: return "the disk is full";
    case Fault::kNoDescriptors: return "too many open files";
    case Fault::kGpuMemory: return "CUDA out of memory";
    case Fault::kGpuAssert: return "an assertion failed on its GPU";
    case Fault::kGpuAccess: return "illegal access on its GPU";
    case Fault::kGpuBroken: return "its GPU failed";
    case Fault::kNoGpu: return "it has no GPU to use";
    case Fault::kNccl: return "an error of NCCL";
    case Fault::kNcclVersion: return "its NCCL has another version";
    case Fault::kAddressInUse: return "its port is in use";
    case Fault::kNoFile: return "a file is missing";
    case Fault::kQuota: return "its disk quota is used up";
    case Fault::kTimeLimit: return "the time limit is reached";
    case Fault::kLeftEarly: return "left early";
    case Fault::kAborted: return "called abort()";
    default: return nullptr;
  }
}

}  // namespace

std::string what_happened(const WorkerDeath& death) {
  const char* known = what_of(death.fault);
  return known ? known : how_it_ended(death);
}

const char* fault_name(Fault fault) { return kNames.at(static_cast<std::size_t>(fault)); }

Fault fault_of_name(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Fault>(i);
  }
  return Fault::kUnknown;
}

}  // namespace ddprun::rendezvous
