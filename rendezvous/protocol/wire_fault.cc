// The words for faults, on the wire and in the JSON form of a verdict.

#include <array>

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

}  // namespace

const char* fault_name(Fault fault) { return kNames.at(static_cast<std::size_t>(fault)); }

Fault fault_of_name(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<Fault>(i);
  }
  return Fault::kUnknown;
}

}  // namespace ddprun::rendezvous
