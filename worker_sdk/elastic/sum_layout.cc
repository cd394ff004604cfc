#include "worker_sdk/elastic/sum_layout.h"

#include <algorithm>

#include "common/assert.h"

namespace ddprun::worker_sdk {
namespace {

std::size_t aligned(std::size_t n) {
  return (n + kSumAlignment - 1) / kSumAlignment * kSumAlignment;
}

}  // namespace

SumLayout lay_out_sums(std::span<const std::size_t> sizes, std::size_t head, std::size_t bucket,
                       bool apart) {
  DDPRUN_ASSERT(bucket >= kSumAlignment);
  const std::size_t most = bucket / kSumAlignment * kSumAlignment;
  SumLayout layout{.pieces = {}, .buckets = {aligned(head)}};
  if (apart) layout.buckets.push_back(0);
  for (std::size_t tensor = 0; tensor < sizes.size(); ++tensor) {
    for (std::size_t from = 0; from < sizes[tensor];) {
      if (layout.buckets.back() >= most) layout.buckets.push_back(0);
      std::size_t& used = layout.buckets.back();
      const std::size_t count = std::min(sizes[tensor] - from, most - used);
      layout.pieces.push_back({tensor, from, count, layout.buckets.size() - 1, used});
      used += aligned(count);
      from += count;
    }
  }
  return layout;
}

}  // namespace ddprun::worker_sdk
