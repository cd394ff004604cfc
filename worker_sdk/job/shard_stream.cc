#include "worker_sdk/job/shard_stream.h"

#include <algorithm>
#include <cstring>

#include "common/assert.h"
#include "worker_sdk/base/checksum.h"
#include "worker_sdk/job/points.h"

namespace ddprun::elastic {
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

}  // namespace ddprun::elastic
