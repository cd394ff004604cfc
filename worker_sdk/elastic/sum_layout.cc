#include "worker_sdk/elastic/sum_layout.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <tuple>

#include "common/assert.h"

namespace ddprun::worker_sdk {
namespace {

constexpr std::size_t kFields = sizeof(SumFields) / sizeof(std::uint64_t);
constexpr std::size_t kTailWords = std::tuple_size_v<ClassTail>;
using Words = std::array<std::uint64_t, kFields>;

}  // namespace

std::size_t exact_head_size(std::size_t tensors) noexcept { return kFields + kTailWords * tensors; }
std::size_t plain_head_size() noexcept { return sizeof(SumFields); }

void write_exact_head(std::int64_t* head, const SumFields& fields,
                      std::span<const std::uint32_t> largest) noexcept {
  std::memcpy(head, &fields, sizeof fields);
  for (std::size_t t = 0; t < largest.size(); ++t) {
    ClassTail tail{};
    count_class(tail, class_of(largest[t]));
    std::memcpy(head + kFields + t * kTailWords, tail.data(), sizeof tail);
  }
}

SumFields fields_of_exact(const std::int64_t* head) noexcept {
  Words words;
  std::memcpy(words.data(), head, sizeof words);
  return std::bit_cast<SumFields>(words);
}

ClassTail tail_of_tensor(const std::int64_t* head, std::size_t tensor) noexcept {
  ClassTail tail;
  std::memcpy(tail.data(), head + kFields + tensor * kTailWords, sizeof tail);
  return tail;
}

void write_plain_head(float* head, const SumFields& fields) noexcept {
  const auto words = std::bit_cast<Words>(fields);
  for (std::size_t i = 0; i < sizeof fields; ++i) {
    head[i] = static_cast<float>(words[i / 8] >> 8 * (i % 8) & 0xff);
  }
}

SumFields fields_of_plain(const float* head) noexcept {
  Words words{};
  for (std::size_t i = 0; i < sizeof words; ++i) {
    words[i / 8] += static_cast<std::uint64_t>(head[i]) << 8 * (i % 8);
  }
  return std::bit_cast<SumFields>(words);
}

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
