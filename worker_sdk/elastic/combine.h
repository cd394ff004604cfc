#pragma once
// An all_reduce with the caller's own arithmetic, for groups on one host: their ranks can read each
// other's arrays. Implemented by worker_sdk/group and worker_sdk/shm; used by worker_sdk/elastic.

#include <cstddef>

#include "ddprun/process_group.h"

namespace ddprun::worker_sdk {

class Combine {
 public:
  virtual ~Combine() = default;
  // Computes `count` elements, from element `at` of the array on, from those that each rank has
  // there. `result` may be one of the sources.
  virtual void combine(std::size_t at, std::size_t count, const void* const* sources, int ranks,
                       void* result) const noexcept = 0;
};

bool can_combine(const ProcessGroup& group);
// Collective. `inout`: of the group's allocate(), at the same place on every rank. All ranks get
// the same result.
void combine_all(ProcessGroup& group, Buffer inout, const Combine& how);

}  // namespace ddprun::worker_sdk
