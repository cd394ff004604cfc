#pragma once
// What all ranks' gradients of one bucket become if each rank has kept those of its only shard: the
// sums of exact_sum.h, made while they are read. Pure. Used by gradient_sums.cc alone.

#include <span>
#include <vector>

#include "worker_sdk/elastic/combine.h"
#include "worker_sdk/elastic/sum_layout.h"

namespace ddprun::worker_sdk {

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
