#include "worker_sdk/job/shard_block.h"

#include <algorithm>
#include <cstring>

#include "common/assert.h"
#include "worker_sdk/base/checksum.h"
#include "worker_sdk/job/kept_state.h"

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

namespace {

using worker_sdk::kChecksumBytes;

constexpr std::size_t kPieceBytes = std::size_t{4} << 20;  // Of all streams of a rank,
constexpr std::size_t kLeastBytes = std::size_t{1} << 16;  // and of each at least.

// The pieces of all streams of one direction that are on their way at once.
class Pieces {
 public:
  Pieces(const std::vector<ShardStream>& streams, std::size_t limit)
      : streams_(streams), limit_(limit), memory_(streams.size()) {
    for (std::size_t r = 0; r < streams.size(); ++r) {
      if (streams[r].total() > 0) {
        memory_[r].resize(std::min<std::uint64_t>(limit, streams[r].total()) + kChecksumBytes);
      }
    }
  }

  // Of the piece that begins at `at`.
  std::size_t bytes(std::size_t r, std::uint64_t at) const {
    const std::uint64_t total = streams_[r].total();
    return at >= total ? 0 : static_cast<std::size_t>(std::min<std::uint64_t>(limit_, total - at));
  }
  PartsBuffer buffers(std::uint64_t at) {
    std::vector<Buffer> parts;
    for (std::size_t r = 0; r < memory_.size(); ++r) {
      const std::size_t n = bytes(r, at);
      parts.push_back({memory_[r].data(), n > 0 ? n + kChecksumBytes : 0, DataType::u8});
    }
    return PartsBuffer(std::move(parts));
  }

  void load(std::uint64_t at) {
    for (std::size_t r = 0; r < memory_.size(); ++r) {
      const std::size_t n = bytes(r, at);
      if (n == 0) continue;
      streams_[r].read(at, std::span(memory_[r]).first(n));
      const std::uint64_t sum = worker_sdk::checksum(memory_[r].data(), n);
      std::memcpy(memory_[r].data() + n, &sum, kChecksumBytes);
    }
  }
  // Returns the rank whose piece is damaged; -1: none.
  int store(std::uint64_t at) {
    for (std::size_t r = 0; r < memory_.size(); ++r) {
      const std::size_t n = bytes(r, at);
      if (n == 0) continue;
      const std::uint64_t sum = worker_sdk::checksum(memory_[r].data(), n);
      if (std::memcmp(memory_[r].data() + n, &sum, kChecksumBytes) != 0) return static_cast<int>(r);
      streams_[r].write(at, std::span(memory_[r]).first(n));
    }
    return -1;
  }

 private:
  const std::vector<ShardStream>& streams_;
  const std::size_t limit_;
  std::vector<std::vector<std::byte>> memory_;  // By rank.
};

}  // namespace

void ShardStream::add(std::span<std::byte> part) {
  parts_.push_back(part);
  total_ += part.size();
}

template <class Visit>
void ShardStream::visit(std::uint64_t at, std::size_t bytes, Visit visit) const {
  std::uint64_t begin = 0;
  std::size_t done = 0;
  for (const auto& part : parts_) {
    const std::uint64_t from = at + done, end = begin + part.size();
    if (done < bytes && from < end) {
      const auto n = static_cast<std::size_t>(std::min<std::uint64_t>(bytes - done, end - from));
      visit(part.subspan(static_cast<std::size_t>(from - begin), n), done);
      done += n;
    }
    begin = end;
  }
  DDPRUN_ASSERT(done == bytes);
}

void ShardStream::read(std::uint64_t at, std::span<std::byte> memory) const {
  visit(at, memory.size(), [&](std::span<std::byte> part, std::size_t place) {
    std::memcpy(memory.data() + place, part.data(), part.size());
  });
}

void ShardStream::write(std::uint64_t at, std::span<const std::byte> memory) const {
  visit(at, memory.size(), [&](std::span<std::byte> part, std::size_t place) {
    std::memcpy(part.data(), memory.data() + place, part.size());
  });
}

void carry(ProcessGroup& group, const std::vector<ShardStream>& out,
           const std::vector<ShardStream>& in, std::uint64_t longest) {
  const std::size_t limit = std::max(kLeastBytes, kPieceBytes / out.size());
  Pieces leaving(out, limit), coming(in, limit);
  for (std::uint64_t at = 0; at < longest; at += limit) {
    leaving.load(at);
    pass("shards");
    group.all_to_all(leaving.buffers(at), coming.buffers(at), {.on_host = true});
    const int damaged = coming.store(at);
    if (damaged < 0) continue;
    throw Error(ErrorKind::corrupt,
                {.rank = group.rank(), .operation = "receiving shards", .peer = damaged},
                "a piece of the shards of rank " + std::to_string(damaged) + " arrived damaged");
  }
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
  return worker_sdk::checksum(first, cut_.bytes_of({s, s + 1}), static_cast<std::uint64_t>(s));
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
