#include "worker_sdk/job/shard_block.h"

#include <algorithm>
#include <cstring>

#include "common/assert.h"
#include "common/checksum.h"

namespace ddprun::elastic {

std::string piece_of(std::int64_t step, int shard) {
  return "step " + std::to_string(step) + ", shard " + std::to_string(shard);
}

bool has_piece(std::string_view pieces, std::string_view piece) {
  constexpr std::string_view kBetween = "; ";
  while (!pieces.empty()) {
    const std::size_t end = pieces.find(kBetween);
    if (pieces.substr(0, end) == piece) return true;
    pieces.remove_prefix(end == std::string_view::npos ? pieces.size() : end + kBetween.size());
  }
  return false;
}

std::string text_of(const std::vector<Sample>& samples) {
  constexpr std::size_t kLongest = 400;  // The page has room for 511 characters of a piece.
  std::string text;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (text.size() > kLongest) {
      return text + " and " + std::to_string(samples.size() - i) + " more";
    }
    text += (i > 0 ? ", " : samples.size() > 1 ? "samples " : "sample ");
    text += std::to_string(samples[i].index);
    if (samples[i].set > 0) text += " of set " + std::to_string(samples[i].set);
  }
  return text;
}

std::size_t ShardCut::first_of(int shard) const {
  const auto n = static_cast<std::size_t>(shards), s = static_cast<std::size_t>(shard);
  return count / n * s + std::min(s, count % n);
}

std::size_t ShardCut::bytes_of(const ShardRange& range) const {
  return (first_of(range.last) - first_of(range.first)) * element_size;
}

ShardBlock::ShardBlock(const ShardCut& cut, const ShardRange& range)
    : cut_(cut),
      range_(range),
      memory_(cut.bytes_of(range) + static_cast<std::size_t>(range.size()) * ShardCut::kSumBytes) {}

std::span<std::byte> ShardBlock::shards_of(const ShardRange& range) {
  DDPRUN_ASSERT(range.first >= range_.first && range.last <= range_.last);
  const std::size_t before = cut_.bytes_of({range_.first, range.first});
  return std::span(memory_).subspan(before, cut_.bytes_of(range));
}

std::span<std::byte> ShardBlock::sum(int s) {
  DDPRUN_ASSERT(range_.has(s));
  const auto place = static_cast<std::size_t>(s - range_.first) * ShardCut::kSumBytes;
  return std::span(memory_).subspan(cut_.bytes_of(range_) + place, ShardCut::kSumBytes);
}

std::uint64_t ShardBlock::sum_of(int s) const {
  const std::byte* first = memory_.data() + cut_.bytes_of({range_.first, s});
  return checksum(first, cut_.bytes_of({s, s + 1}), static_cast<std::uint64_t>(s));
}

void ShardBlock::seal() {
  for (int s = range_.first; s < range_.last; ++s) {
    const std::uint64_t made = sum_of(s);
    std::memcpy(sum(s).data(), &made, ShardCut::kSumBytes);
  }
}

bool ShardBlock::is_sound(int s) const {
  const auto place = static_cast<std::size_t>(s - range_.first) * ShardCut::kSumBytes;
  const std::uint64_t wanted = sum_of(s);
  const std::byte* const sum = memory_.data() + cut_.bytes_of(range_) + place;
  return std::memcmp(sum, &wanted, ShardCut::kSumBytes) == 0;
}

int ShardBlock::damaged() const {
  for (int s = range_.first; s < range_.last; ++s) {
    if (!is_sound(s)) return s;
  }
  return -1;
}

void ShardBlock::copy_from(ShardBlock& other) {
  DDPRUN_ASSERT(other.range_ == range_);
  memory_ = other.memory_;
}

}  // namespace ddprun::elastic
