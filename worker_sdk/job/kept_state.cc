#include "worker_sdk/job/kept_state.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <span>

#include "common/assert.h"
#include "common/checksum.h"

namespace ddprun::elastic {
namespace {

constexpr std::size_t kStatePieceBytes = std::size_t{4} << 20;

// A piece and the checksum behind it, in one array.
class Piece {
 public:
  explicit Piece(std::uint64_t total)
      : memory_(std::min<std::uint64_t>(total, kStatePieceBytes) + kChecksumBytes) {}

  std::byte* data() { return memory_.data(); }
  void seal(std::size_t bytes) {
    const std::uint64_t sum = checksum(memory_.data(), bytes);
    std::memcpy(memory_.data() + bytes, &sum, kChecksumBytes);
  }
  bool is_sound(std::size_t bytes) const {
    const std::uint64_t sum = checksum(memory_.data(), bytes);
    return std::memcmp(memory_.data() + bytes, &sum, kChecksumBytes) == 0;
  }
  void broadcast(ProcessGroup& group, std::size_t bytes, int root) {
    auto* const first = reinterpret_cast<std::uint8_t*>(memory_.data());
    group.broadcast(buffer(first, bytes + kChecksumBytes), root, {.on_host = true});
  }

 private:
  std::vector<std::byte> memory_;
};

// A piece's part of one item.
struct Part {
  std::size_t item = 0;
  std::size_t in_item = 0;  // Its offset in the item, and in the piece.
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

// Calls visit(offset, piece) for the pieces of an array, which may be in a GPU's memory.
template <class Visit>
void for_pieces(ProcessGroup& group, const Buffer& array, Visit visit) {
  const bool is_hosts = group.device() < 0;
  std::vector<std::byte> here(is_hosts ? 0 : std::min(array.bytes(), kStatePieceBytes));
  for (std::size_t at = 0; at < array.bytes(); at += kStatePieceBytes) {
    const std::size_t bytes = std::min(kStatePieceBytes, array.bytes() - at);
    const std::byte* part = static_cast<const std::byte*>(array.data) + at;
    if (!is_hosts) group.copy(here.data(), part, bytes);
    visit(at, std::span(is_hosts ? part : here.data(), bytes));
  }
}

std::uint64_t checksum_of(ProcessGroup& group, const Buffer& array) {
  std::uint64_t sum = 0;
  for_pieces(group, array, [&](std::size_t, std::span<const std::byte> piece) {
    sum = checksum(piece.data(), piece.size(), sum);
  });
  return sum;
}

// Of numbers of this type all bits of `exponent` are set in those that are infinite or NaN.
template <class Bits>
std::uint64_t count_not_finite(std::span<const std::byte> piece, Bits exponent) {
  std::uint64_t found = 0;
  for (std::size_t at = 0; at + sizeof(Bits) <= piece.size(); at += sizeof(Bits)) {
    Bits bits = 0;
    std::memcpy(&bits, piece.data() + at, sizeof bits);
    found += (bits & exponent) == exponent ? 1 : 0;
  }
  return found;
}

std::uint64_t count_not_finite(std::span<const std::byte> piece, DataType type) {
  switch (type) {
    case DataType::f16: return count_not_finite<std::uint16_t>(piece, 0x7c00);
    case DataType::bf16: return count_not_finite<std::uint16_t>(piece, 0x7f80);
    case DataType::f32:
    case DataType::c64: return count_not_finite<std::uint32_t>(piece, 0x7f800000);
    case DataType::f64:
    case DataType::c128: return count_not_finite<std::uint64_t>(piece, 0x7ff0000000000000);
    default: return 0;
  }
}

// `mine.size()` numbers of each rank, in the order of ranks.
std::vector<std::uint64_t> gathered(ProcessGroup& group, std::vector<std::uint64_t> mine) {
  std::vector<std::uint64_t> all(mine.size() * static_cast<std::size_t>(group.world_size()));
  group.all_gather(buffer(reinterpret_cast<std::int64_t*>(mine.data()), mine.size()),
                   buffer(reinterpret_cast<std::int64_t*>(all.data()), all.size()),
                   {.on_host = true});
  return all;
}

}  // namespace

std::vector<int> odd_ranks(const std::vector<std::uint64_t>& by_rank) {
  std::map<std::uint64_t, int> ranks_with;
  for (const std::uint64_t one : by_rank) ++ranks_with[one];
  std::uint64_t usual = by_rank.front();
  for (const auto& [one, ranks] : ranks_with) {
    if (ranks > ranks_with[usual]) usual = one;
  }
  std::vector<int> odd;
  for (std::size_t r = 0; r < by_rank.size(); ++r) {
    if (by_rank[r] != usual) odd.push_back(static_cast<int>(r));
  }
  return odd;
}

std::uint64_t KeptState::hash(ProcessGroup& group) const {
  std::uint64_t all = 0;
  for (const Item& item : items_) {
    if (item.save || item.array.count == 0) continue;
    const std::uint64_t one = checksum_of(group, item.array);
    all = checksum(&one, sizeof one, all);
  }
  return all;
}

KeptState::NotFinite KeptState::not_finite(ProcessGroup& group) const {
  NotFinite result;
  for (const Item& item : items_) {
    if (item.save) continue;
    for_pieces(group, item.array, [&](std::size_t, std::span<const std::byte> piece) {
      result.elements += count_not_finite(piece, item.array.type);
    });
    if (result.elements > 0 && result.first.empty()) result.first = item.name;
  }
  return result;
}

std::string KeptState::difference(ProcessGroup& group, const Staged& staged) const {
  DDPRUN_ASSERT(staged.size() >= items_.size());
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].save) continue;
    bool is_equal = items_[i].array.bytes() == staged[i].size();
    for_pieces(group, items_[i].array, [&](std::size_t at, std::span<const std::byte> piece) {
      is_equal = is_equal && std::memcmp(piece.data(), staged[i].data() + at, piece.size()) == 0;
    });
    if (!is_equal) return items_[i].name;
  }
  return "";
}

void KeptState::require_equal(ProcessGroup& group, std::int64_t steps) const {
  std::vector<std::uint64_t> mine;
  std::vector<const Item*> arrays;
  for (const Item& item : items_) {
    if (item.save || item.array.count == 0) continue;
    arrays.push_back(&item);
    mine.push_back(checksum_of(group, item.array));
  }
  if (odd_ranks(gathered(group, {checksum(mine.data(), mine.size() * 8)})).empty()) {
    return;
  }
  const std::vector<std::uint64_t> all = gathered(group, mine);
  for (std::size_t i = 0; i < arrays.size(); ++i) {
    std::vector<std::uint64_t> by_rank;
    for (std::size_t at = i; at < all.size(); at += arrays.size()) by_rank.push_back(all[at]);
    const std::vector<int> odd = odd_ranks(by_rank);
    if (odd.empty()) continue;
    std::string ranks;
    for (const int rank : odd) {
      ranks += (ranks.empty() ? "rank " : ", rank ") + std::to_string(rank) + " on " +
               group.host_of(rank);
    }
    throw Error(
        ErrorKind::mismatch,
        {.rank = group.rank(), .operation = "comparing kept state", .peer = odd.front()},
        "after step " + std::to_string(steps) + " \"" + arrays[i]->name + "\" of " + ranks +
            " differs from that of the other ranks: only the function given to commit() may "
            "change kept state, and in the same way on every rank; go on from a checkpoint");
  }
}

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

std::uint64_t KeptState::signature(std::int64_t check_every) const {
  std::uint64_t hash =
      items_.size() + static_cast<std::uint64_t>(check_every) * 0x9e3779b97f4a7c15U;
  for (const Item& item : items_) {
    hash = checksum(item.name.data(), item.name.size(), hash);
    const std::uint64_t bytes = item.save ? ~std::uint64_t{0} : item.array.bytes();
    hash = checksum(&bytes, sizeof(bytes), hash);
  }
  return hash;
}

KeptState::Snapshot KeptState::snapshot() const {
  Snapshot result{.saved = std::vector<std::string>(items_.size()), .sizes = {}};
  for (std::size_t i = 0; i < items_.size(); ++i) {
    if (items_[i].save) result.saved[i] = items_[i].save();
    result.sizes.push_back(items_[i].save ? result.saved[i].size() : items_[i].array.bytes());
  }
  return result;
}

void KeptState::write(ProcessGroup& group, const Snapshot& snapshot, std::size_t piece_bytes,
                      const std::function<void(std::string_view)>& piece) const {
  std::string here;  // Of an array, which may be in a GPU's memory.
  for (std::size_t i = 0; i < items_.size(); ++i) {
    for (std::uint64_t at = 0; at < snapshot.sizes[i]; at += piece_bytes) {
      const auto from = static_cast<std::size_t>(at);
      const auto bytes =
          static_cast<std::size_t>(std::min<std::uint64_t>(piece_bytes, snapshot.sizes[i] - at));
      if (items_[i].save) {
        piece(std::string_view(snapshot.saved[i]).substr(from, bytes));
        continue;
      }
      here.resize(bytes);
      group.copy(here.data(), static_cast<std::byte*>(items_[i].array.data) + from, bytes);
      piece(here);
    }
  }
}

std::uint64_t KeptState::send(ProcessGroup& group) const {
  Snapshot snapshot_of_all = snapshot();
  auto& [saved, sizes] = snapshot_of_all;
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
      DDPRUN_ASSERT(bytes.size() == items_[i].array.bytes());  // The signatures are equal.
      group.copy(items_[i].array.data, bytes.data(), bytes.size());
    }
  }
}

std::vector<CheckpointPiece> KeptState::pieces(ProcessGroup& group, const EvenShare& share,
                                               std::vector<std::string>& lent) const {
  std::vector<CheckpointPiece> pieces;
  lent.reserve(items_.size());  // Pieces refer to its elements.
  for (const Item& item : items_) {
    const std::string name = std::string(kInCheckpoint) + item.name;
    if (item.save && share.index != 0) continue;
    if (item.save) {
      std::string& saved = lent.emplace_back(item.save());
      auto* const first = reinterpret_cast<std::uint8_t*>(saved.data());
      pieces.push_back({.name = name, .part = buffer(first, saved.size())});
      continue;
    }
    CheckpointPiece piece = even_piece(share, name, item.array);
    if (group.device() >= 0 && piece.part.count > 0) {
      std::string& here = lent.emplace_back(piece.part.bytes(), '\0');
      group.copy(here.data(), piece.part.data, here.size());
      piece.part.data = here.data();
    }
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

KeptState::Staged KeptState::read(const Checkpoint& checkpoint) const {
  Staged staged;
  for (const Item& item : items_) {
    const std::string name = std::string(kInCheckpoint) + item.name;
    const Checkpoint::Array* found = checkpoint.find(name);
    const bool fits =
        found && (item.save ? found->type == DataType::u8
                            : found->type == item.array.type && found->count == item.array.count);
    if (!fits) {
      throw Error(ErrorKind::mismatch, {.operation = "Job::run"},
                  "its \"" + item.name + "\" is missing, or of another size or type");
    }
    auto& bytes = staged.emplace_back(found->count * size_of(found->type));
    checkpoint.read(name, {bytes.data(), found->count, found->type});
  }
  return staged;
}

}  // namespace ddprun::elastic
