#include "worker_sdk/job/kept_state.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "common/assert.h"
#include "worker_sdk/base/checksum.h"
#include "worker_sdk/job/points.h"

namespace ddprun::elastic {
namespace {

using worker_sdk::kChecksumBytes;

constexpr std::size_t kStatePieceBytes = std::size_t{4} << 20;

// A piece and the checksum behind it, in one array.
class Piece {
 public:
  explicit Piece(std::uint64_t total)
      : memory_(std::min<std::uint64_t>(total, kStatePieceBytes) + kChecksumBytes) {}

  std::byte* data() { return memory_.data(); }
  void seal(std::size_t bytes) {
    const std::uint64_t sum = worker_sdk::checksum(memory_.data(), bytes);
    std::memcpy(memory_.data() + bytes, &sum, kChecksumBytes);
  }
  bool is_sound(std::size_t bytes) const {
    const std::uint64_t sum = worker_sdk::checksum(memory_.data(), bytes);
    return std::memcmp(memory_.data() + bytes, &sum, kChecksumBytes) == 0;
  }
  void broadcast(ProcessGroup& group, std::size_t bytes, int root) {
    auto* const first = reinterpret_cast<std::uint8_t*>(memory_.data());
    group.broadcast(buffer(first, bytes + kChecksumBytes), root, {.on_host = true});
  }

 private:
  std::vector<std::byte> memory_;
};

// What a piece has of one item.
struct Part {
  std::size_t item = 0;
  std::size_t in_item = 0;  // Where it begins, there and in the piece.
  std::size_t in_piece = 0;
  std::size_t bytes = 0;
};

// Calls visit(Part) for each part of the piece that begins at `at`.
template <class Visit>
void for_parts(const std::vector<std::uint64_t>& sizes, std::uint64_t at, std::size_t bytes,
               Visit visit) {
  std::uint64_t begin = 0;
  std::size_t done = 0;
  for (std::size_t i = 0; i < sizes.size() && done < bytes; begin += sizes[i], ++i) {
    const std::uint64_t from = at + done;
    if (from >= begin + sizes[i]) continue;
    const auto n =
        static_cast<std::size_t>(std::min<std::uint64_t>(bytes - done, begin + sizes[i] - from));
    visit(Part{i, static_cast<std::size_t>(from - begin), done, n});
    done += n;
  }
  DDPRUN_ASSERT(done == bytes);
}

std::uint64_t total_of(const std::vector<std::uint64_t>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
}

void share_sizes(ProcessGroup& group, std::vector<std::uint64_t>& sizes, int root) {
  if (sizes.empty()) return;
  auto* const numbers = reinterpret_cast<std::int64_t*>(sizes.data());
  group.broadcast(buffer(numbers, sizes.size()), root, {.on_host = true});
}

}  // namespace

void KeptState::add(Item item) {
  const bool by_functions = item.save != nullptr;
  const bool known = std::any_of(items_.begin(), items_.end(),
                                 [&](const Item& one) { return one.name == item.name; });
  const bool is_whole =
      by_functions ? item.load != nullptr : item.array.data || item.array.count == 0;
  if (known || !is_whole) {
    throw Error(ErrorKind::bad_argument, {.operation = "Job::keep"},
                "\"" + item.name + (known ? "\" is kept already" : "\" has no memory or function"));
  }
  items_.push_back(std::move(item));
}

std::uint64_t KeptState::signature() const {
  std::uint64_t hash = items_.size();
  for (const Item& item : items_) {
    hash = worker_sdk::checksum(item.name.data(), item.name.size(), hash);
    const std::uint64_t bytes = item.save ? ~std::uint64_t{0} : item.array.bytes();
    hash = worker_sdk::checksum(&bytes, sizeof(bytes), hash);
  }
  return hash;
}

std::uint64_t KeptState::send(ProcessGroup& group) const {
  std::vector<std::string> saved(items_.size());
  std::vector<std::uint64_t> sizes(items_.size());
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].save) saved[i] = items_[i].save();
    sizes[i] = items_[i].save ? saved[i].size() : items_[i].array.bytes();
  }
  share_sizes(group, sizes, group.rank());
  const std::uint64_t total = total_of(sizes);
  Piece piece(total);
  for (std::uint64_t at = 0; at < total; at += kStatePieceBytes) {
    const auto bytes =
        static_cast<std::size_t>(std::min<std::uint64_t>(kStatePieceBytes, total - at));
    for_parts(sizes, at, bytes, [&](const Part& part) {
      const auto& [i, from, to, n] = part;
      if (items_[i].save) {
        std::memcpy(piece.data() + to, saved[i].data() + from, n);
      } else {
        group.copy(piece.data() + to, static_cast<std::byte*>(items_[i].array.data) + from, n);
      }
    });
    piece.seal(bytes);
    pass("send");
    piece.broadcast(group, bytes, group.rank());
  }
  return total;
}

KeptState::Staged KeptState::receive(ProcessGroup& group, int source, bool lacks) const {
  std::vector<std::uint64_t> sizes(items_.size());
  share_sizes(group, sizes, source);
  Staged staged(lacks ? sizes.size() : 0);
  for (std::size_t i = 0; i < staged.size(); ++i) {
    staged[i].resize(static_cast<std::size_t>(sizes[i]));
  }
  const std::uint64_t total = total_of(sizes);
  Piece piece(total);
  for (std::uint64_t at = 0; at < total; at += kStatePieceBytes) {
    const auto bytes =
        static_cast<std::size_t>(std::min<std::uint64_t>(kStatePieceBytes, total - at));
    piece.broadcast(group, bytes, source);
    if (!lacks) continue;
    pass("receive");
    if (!piece.is_sound(bytes)) {
      throw Error(ErrorKind::corrupt,
                  {.rank = group.rank(), .operation = "receiving kept state", .peer = source},
                  "a piece of the state of rank " + std::to_string(source) + " arrived damaged");
    }
    for_parts(sizes, at, bytes, [&](const Part& part) {
      std::memcpy(staged[part.item].data() + part.in_item, piece.data() + part.in_piece,
                  part.bytes);
    });
  }
  return staged;
}

void KeptState::put(ProcessGroup& group, const Staged& staged) {
  DDPRUN_ASSERT(staged.size() == items_.size());
  for (std::size_t i = 0; i < items_.size(); ++i) {
    const auto& bytes = staged[i];
    if (items_[i].load) {
      items_[i].load({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    } else {
      DDPRUN_ASSERT(bytes.size() == items_[i].array.bytes());  // As the signatures are equal.
      group.copy(items_[i].array.data, bytes.data(), bytes.size());
    }
  }
}

}  // namespace ddprun::elastic
