#pragma once
// CUDA_VISIBLE_DEVICES, read as the CUDA driver reads it. Pure. Used by placement and environment.

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::agent {

// The entries before the first that the driver would not accept: a negative number ("-1", which
// often means "none") or anything that is neither a number nor a GPU-/MIG- name. Blanks around one
// are dropped.
std::vector<std::string> split_gpu_list(std::string_view value);

// How many of `present` GPUs such a list leaves visible. A number from `present` on ends the list;
// one that comes twice leaves none at all. Names are taken on trust.
int visible_gpus(std::string_view value, int present);

}  // namespace ddprun::agent
