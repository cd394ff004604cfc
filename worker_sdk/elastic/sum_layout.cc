#include "worker_sdk/elastic/sum_layout.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <tuple>
#include <utility>

#include "common/assert.h"

namespace ddprun::worker_sdk {
namespace {

constexpr std::size_t kFields = sizeof(SumFields) / sizeof(std::uint64_t);
constexpr std::size_t kTailWords = std::tuple_size_v<ClassTail>;
using Words = std::array<std::uint64_t, kFields>;

}  // namespace

std::size_t exact_head_size(std::size_t notes, std::size_t tensors) noexcept {
  return kFields + notes + kTailWords * tensors;
}
std::size_t plain_head_size(std::size_t notes) noexcept {
  return (kFields + notes) * sizeof(std::uint64_t);
}

void write_exact_head(std::int64_t* head, const SumFields& fields, Notes notes,
                      std::span<const std::uint32_t> largest) noexcept {
  std::memcpy(head, &fields, sizeof fields);
  std::copy(notes.begin(), notes.end(), head + kFields);
  for (std::size_t t = 0; t < largest.size(); ++t) {
    ClassTail tail{};
    count_class(tail, class_of(largest[t]));
    std::memcpy(head + kFields + notes.size() + t * kTailWords, tail.data(), sizeof tail);
  }
}

SumFields fields_of_exact(const std::int64_t* head) noexcept {
  Words words;
  std::memcpy(words.data(), head, sizeof words);
  return std::bit_cast<SumFields>(words);
}

std::vector<std::int64_t> notes_of_exact(const std::int64_t* head, std::size_t notes) {
  return {head + kFields, head + kFields + notes};
}

ClassTail tail_of_tensor(const std::int64_t* head, std::size_t notes, std::size_t tensor) noexcept {
  ClassTail tail;
  std::memcpy(tail.data(), head + kFields + notes + tensor * kTailWords, sizeof tail);
  return tail;
}

namespace {

constexpr std::size_t kWordBytes = sizeof(std::uint64_t);

void write_word(float* bytes, std::uint64_t word) noexcept {
  for (std::size_t i = 0; i < kWordBytes; ++i) bytes[i] = static_cast<float>(word >> 8 * i & 0xff);
}

std::uint64_t read_word(const float* bytes) noexcept {
  std::uint64_t word = 0;
  for (std::size_t i = 0; i < kWordBytes; ++i)
    word += static_cast<std::uint64_t>(bytes[i]) << 8 * i;
  return word;
}

}  // namespace

void write_plain_head(float* head, const SumFields& fields, Notes notes) noexcept {
  for (const std::uint64_t word : std::bit_cast<Words>(fields)) {
    write_word(std::exchange(head, head + kWordBytes), word);
  }
  for (const std::int64_t note : notes) {
    write_word(std::exchange(head, head + kWordBytes), static_cast<std::uint64_t>(note));
  }
}

SumFields fields_of_plain(const float* head) noexcept {
  Words words;
  for (std::size_t i = 0; i < kFields; ++i) words[i] = read_word(head + i * kWordBytes);
  return std::bit_cast<SumFields>(words);
}

std::vector<std::int64_t> notes_of_plain(const float* head, std::size_t notes) {
  std::vector<std::int64_t> words;
  for (std::size_t i = 0; i < notes; ++i) {
    words.push_back(static_cast<std::int64_t>(read_word(head + (kFields + i) * kWordBytes)));
  }
  return words;
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
