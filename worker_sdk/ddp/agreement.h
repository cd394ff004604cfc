#pragma once
// Do all ranks train the same model? Checked once, before the first gradient is exchanged, because
// a difference would otherwise appear as a hang or as wrong numbers. Used by
// distributed_data_parallel.cc.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/distributed_data_parallel.h"
#include "ddprun/process_group.h"

namespace ddprun::worker_sdk {

// Do all ranks still hold the same parameters? Used by distributed_data_parallel.cc every
// DdpOptions::checksum_every steps.

// Collective; eight bytes per rank travel if all values are equal. Throws Error(mismatch) on every
// rank, which names the first parameter that differs and the ranks on which it does.
void require_equal_values(ProcessGroup& group, const std::vector<Parameter>& parameters);

// What must be equal on all ranks, one line per item: the options, the hook's name, then "type
// [shape]<tab>name" of every parameter.
std::vector<std::string> signature(const std::vector<Parameter>& parameters,
                                   const DdpOptions& options, const std::string& hook);

// Includes all lines.
std::uint64_t hash_of(const std::vector<std::string>& signature);

// The rank to compare with: the lowest of the largest group of equal ranks.
int reference_rank(const std::vector<std::uint64_t>& hashes);

// The first difference of `mine` from `reference`; std::nullopt if they agree.
std::optional<std::string> difference(const std::vector<std::string>& mine,
                                      const std::vector<std::string>& reference);

// Collective. Throws the same Error(mismatch) on every rank if any two differ.
void require_agreement(ProcessGroup& group, const std::vector<std::string>& signature);

}  // namespace ddprun::worker_sdk
