#pragma once
// An all_reduce with arithmetic of the caller's own, for groups whose ranks see each other's
// arrays: those on one host. Implemented by worker_sdk/group and worker_sdk/shm; used by
// worker_sdk/elastic.

#include <cstddef>

#include "ddprun/process_group.h"

namespace ddprun::worker_sdk {

class Combine {
 public:
  virtual ~Combine() = default;
  // Makes `count` elements, from element `at` of the array on, of those that each rank has there.
  // `result` may be one of the sources.
  virtual void combine(std::size_t at, std::size_t count, const void* const* sources, int ranks,
                       void* result) const noexcept = 0;
};

bool can_combine(const ProcessGroup& group);
// Collective. `inout`: of the group's allocate(), at the same place on every rank. All ranks get
// the same result.
void combine_all(ProcessGroup& group, Buffer inout, const Combine& how);

}  // namespace ddprun::worker_sdk
