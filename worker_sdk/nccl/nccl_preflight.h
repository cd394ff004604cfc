#pragma once
// What the ranks send each other before any of them calls NCCL, and what follows from it. NCCL
// itself would hang, or report that something is wrong somewhere. Pure; nccl_join.cc carries it
// through the store.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace ddprun::worker_sdk {

// One rank's GPU and library.
struct GpuFacts {
  std::string error;       // Why this rank cannot use NCCL; empty: it can.
  int nccl_version = 0;    // From ncclGetVersion.
  int device = -1;         // Index among those that the process sees.
  std::string bus_id;      // The GPU's, unique on its host.
  bool may_share = false;  // NCCL is configured for several ranks per GPU.

  bool operator==(const GpuFacts&) const = default;
};

std::string encode(const GpuFacts& facts);
// A failure names the field that is not what encode() makes.
Result<GpuFacts> decode_gpu_facts(std::string_view text);

struct Objection {
  int culprit = -1;
  std::string text;
};
// Why these ranks cannot form a communicator, if they cannot. `hosts` and `domains` by rank: the
// hosts' names, and a value that differs between hosts.
std::optional<Objection> objection(const std::vector<GpuFacts>& facts,
                                   const std::vector<std::string>& hosts,
                                   const std::vector<std::string>& domains);

// Several bootstrap roots: how many there are, and which of them, if any, is at `rank`. As
// ncclCommInitRankScalable has it: ranks are split evenly, the first of each part has a root.
int roots_for(int world_size, int ranks_per_root);
int root_of(int rank, int world_size, int roots);  // -1: none.

std::string to_hex(std::string_view bytes);
std::optional<std::string> from_hex(std::string_view text);

}  // namespace ddprun::worker_sdk
