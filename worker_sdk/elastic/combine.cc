#include "worker_sdk/elastic/combine.h"

#include <algorithm>
#include <array>
#include <limits>

#include "common/assert.h"
#include "worker_sdk/elastic/exact_sum.h"

namespace ddprun::worker_sdk {

void CombinePieces::combine(std::size_t at, std::size_t count, const void* const* sources,
                            int ranks, void* result) const noexcept {
  constexpr std::size_t kRanksMax = 1024;  // Of one host.
  DDPRUN_ASSERT(ranks > 0 && static_cast<std::size_t>(ranks) <= kRanksMax);
  std::array<const float*, kRanksMax> parts;
  const auto first =
      std::partition_point(pieces_.begin(), pieces_.end(),
                           [&](const SumPiece& piece) { return piece.at + piece.count <= at; });
  for (auto piece = first; piece != pieces_.end() && piece->at < at + count; ++piece) {
    const std::size_t begin = std::max(piece->at, at);
    const std::size_t end = std::min(piece->at + piece->count, at + count);
    const std::span sums(static_cast<float*>(result) + (begin - at), end - begin);
    if (!tensors_.finite[piece->tensor]) {
      std::fill(sums.begin(), sums.end(), std::numeric_limits<float>::quiet_NaN());
      continue;
    }
    for (int r = 0; r < ranks; ++r) {
      parts[static_cast<std::size_t>(r)] = static_cast<const float*>(sources[r]) + (begin - at);
    }
    combine_exact({parts.data(), static_cast<std::size_t>(ranks)}, sums,
                  tensors_.exponents[piece->tensor], divisor_);
  }
}

}  // namespace ddprun::worker_sdk
