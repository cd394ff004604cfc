#pragma once
// An all_reduce with the caller's own arithmetic, for groups on one host: their ranks can read each
// other's arrays. Implemented by worker_sdk/group and worker_sdk/shm; used by worker_sdk/elastic.

#include <cstddef>
#include <span>
#include <vector>

#include "ddprun/process_group.h"
#include "worker_sdk/elastic/sum_layout.h"

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

// Computes one bucket from all ranks' gradients if each rank has kept the gradients of its only
// shard: the sums of exact_sum.h, made while they are read. Pure. Used by gradient_sums.cc alone.
class CombinePieces : public Combine {
 public:
  struct Tensors {
    const std::vector<int>& exponents;
    const std::vector<bool>& finite;  // The sums of others are NaN.
  };
  // `pieces`: those of the bucket.
  CombinePieces(std::span<const SumPiece> pieces, Tensors tensors, double divisor)
      : pieces_(pieces), tensors_(tensors), divisor_(divisor) {}

  void combine(std::size_t at, std::size_t count, const void* const* sources, int ranks,
               void* result) const noexcept override;

 private:
  std::span<const SumPiece> pieces_;
  Tensors tensors_;
  double divisor_;
};

}  // namespace ddprun::worker_sdk
