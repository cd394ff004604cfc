// ShmBackend's collectives that only move bytes: chunk by chunk through the staging slots, or
// straight between arrays that all ranks have in the same place of shared memory.

#include "worker_sdk/shm/shm_backend.h"
#include "worker_sdk/shm/shm_pieces.h"

namespace ddprun::worker_sdk {

void ShmBackend::broadcast(const Call& call, const Arrays& arrays) {
  broadcast_from(call, arrays.out, team_->team_rank(call.what.rank));
}

void ShmBackend::broadcast_from(const Call& call, Buffer inout, int root) {
  guarded([&] {
    const bool is_root = team_->rank() == root;
    const Place place = find(inout);
    if (exchange(call, place)) {
      if (!is_root) copy_bytes(inout.data, place.of(root), inout.bytes());
      return team_->enter(call);
    }
    const Pieces chunks{inout.bytes(), kChunkBytes};
    in_turns(
        call, chunks.number(),
        [&](std::size_t i, std::byte* staging) {
          if (is_root) copy_bytes(staging, bytes_of(inout) + chunks.begin(i), chunks.bytes(i));
        },
        [&](std::size_t i, unsigned parity) {
          if (is_root) return;
          copy_bytes(bytes_of(inout) + chunks.begin(i), team_->staging(parity, root),
                     chunks.bytes(i));
        });
  });
}

void ShmBackend::all_gather(const Call& call, const Arrays& arrays) {
  const Buffer in = arrays.in;
  const int me = team_->rank();
  const auto part = [&](int r) { return arrays.out_part(r, call.what.count); };
  const Place place = arrays.outs.empty() ? find(arrays.out) : Place();
  if (exchange(call, place)) {
    const std::size_t at = static_cast<std::size_t>(me) * in.bytes();
    for (int r = 0; r < team_->size(); ++r) move_bytes(place.of(r) + at, in.data, in.bytes());
    return team_->enter(call);
  }
  move_bytes(part(me).data, in.data, in.bytes());
  std::size_t turns = 0;
  const auto chunks = [&](int r) { return Pieces{part(r).bytes(), kChunkBytes}; };
  for (int r = 0; r < team_->size(); ++r) turns = std::max(turns, chunks(r).number());
  in_turns(
      call, turns,
      [&](std::size_t i, std::byte* staging) {
        copy_bytes(staging, bytes_of(part(me)) + chunks(me).begin(i), chunks(me).bytes(i));
      },
      [&](std::size_t i, unsigned parity) {
        for (int r = 0; r < team_->size(); ++r) {
          if (r == me) continue;
          copy_bytes(bytes_of(part(r)) + chunks(r).begin(i), team_->staging(parity, r),
                     chunks(r).bytes(i));
        }
      });
}

void ShmBackend::gather_from_owners(const Call& call, Buffer inout, int owners) {
  const std::size_t element = size_of(inout.type);
  const auto slice = [&](int r) {
    const Slice s = slice_of(r, owners, inout.count);
    return Buffer{bytes_of(inout) + s.begin * element, s.count, inout.type};
  };
  const Buffer mine = slice(team_->rank());
  const auto take = [&](int r, std::size_t begin, const std::byte* from, std::size_t bytes) {
    if (r != team_->rank()) copy_bytes(bytes_of(slice(r)) + begin, from, bytes);
  };
  guarded([&] {
    if (inout.bytes() <= kSmallBytes) {
      copy_bytes(team_->small_of_next(), mine.data, mine.bytes());
      exchange(call, {});
      for (int r = 0; r < owners; ++r) take(r, 0, team_->small(r), slice(r).bytes());
      return;
    }
    const Place place = find(inout);
    if (exchange(call, place)) {
      for (int r = 0; r < owners; ++r) {
        take(r, 0, place.of(r) + (bytes_of(slice(r)) - bytes_of(inout)), slice(r).bytes());
      }
      return team_->enter(call);
    }
    std::size_t turns = 0;  // Slices may differ by a grain.
    const auto chunks = [&](int r) { return Pieces{slice(r).bytes(), kChunkBytes}; };
    for (int r = 0; r < owners; ++r) turns = std::max(turns, chunks(r).number());
    in_turns(
        call, turns,
        [&](std::size_t i, std::byte* staging) {
          const Pieces of_mine = chunks(team_->rank());
          copy_bytes(staging, bytes_of(mine) + of_mine.begin(i), of_mine.bytes(i));
        },
        [&](std::size_t i, unsigned parity) {
          for (int r = 0; r < owners; ++r) {
            take(r, chunks(r).begin(i), team_->staging(parity, r), chunks(r).bytes(i));
          }
        });
  });
}

// The counts of all parts, of which each rank has some lists, after an exchange with which they
// travel. Fails where a rank sends this one another number than it awaits.
std::vector<std::size_t> ShmBackend::exchange_parts(const Call& call, const Arrays& arrays) {
  const auto n = static_cast<std::size_t>(team_->size());
  static_assert(kShmRanksMax * sizeof(std::size_t) <= kSmallBytes);
  auto* mine = reinterpret_cast<std::size_t*>(team_->small_of_next());
  for (std::size_t r = 0; r < n; ++r) mine[r] = arrays.ins[r].count;
  exchange(call, {});
  std::vector<std::size_t> all;
  for (int r = 0; r < team_->size(); ++r) {
    const auto* theirs = reinterpret_cast<const std::size_t*>(team_->small(r));
    const std::size_t awaited = arrays.outs[static_cast<std::size_t>(r)].count;
    all.insert(all.end(), theirs, theirs + n);
    const std::size_t sent = theirs[team_->rank()];
    if (sent == awaited) continue;
    throw failure(team_->roster(), call, ErrorKind::mismatch, team_->group_rank(r),
                  team_->name(r) + " sends " + std::to_string(sent) +
                      " elements to this rank, which expects " + std::to_string(awaited));
  }
  return all;
}

// Each rank's staging slot holds one piece for each rank.
void ShmBackend::all_to_all(const Call& call, const Arrays& arrays) {
  const int n = team_->size(), me = team_->rank();
  const auto in = [&](int r) { return arrays.in_part(r, call.what.count); };
  const auto out = [&](int r) { return arrays.out_part(r, call.what.count); };
  std::size_t longest = call.what.count;
  if (call.what.parts == kOwnParts) {
    const auto all = exchange_parts(call, arrays);
    longest = *std::max_element(all.begin(), all.end());
  } else {
    exchange(call, {});
  }
  const std::size_t piece = kChunkBytes / static_cast<std::size_t>(n) / 64 * 64;
  const auto pieces = [&](const Buffer& part) { return Pieces{part.bytes(), piece}; };
  const auto slot = [&](int r) { return static_cast<std::size_t>(r) * piece; };
  copy_bytes(out(me).data, in(me).data, in(me).bytes());
  in_turns(
      call, Pieces{longest * size_of(call.what.type), piece}.number(),
      [&](std::size_t i, std::byte* staging) {
        for (int r = 0; r < n; ++r) {
          if (r == me) continue;
          const Pieces of = pieces(in(r));
          copy_bytes(staging + slot(r), bytes_of(in(r)) + of.begin(i), of.bytes(i));
        }
      },
      [&](std::size_t i, unsigned parity) {
        for (int r = 0; r < n; ++r) {
          if (r == me) continue;
          const Pieces of = pieces(out(r));
          copy_bytes(bytes_of(out(r)) + of.begin(i), team_->staging(parity, r) + slot(me),
                     of.bytes(i));
        }
      });
}

void ShmBackend::gather(const Call& call, const Arrays& arrays) {
  const Buffer in = arrays.in;
  exchange(call, {});
  const int root = team_->team_rank(call.what.rank);
  const int me = team_->rank();
  const auto part = [&](int r) { return arrays.out_part(r, call.what.count); };
  const Pieces chunks{in.bytes(), kChunkBytes};
  if (me == root) move_bytes(part(me).data, in.data, in.bytes());
  in_turns(
      call, chunks.number(),
      [&](std::size_t i, std::byte* staging) {
        if (me == root) return;
        copy_bytes(staging, bytes_of(in) + chunks.begin(i), chunks.bytes(i));
      },
      [&](std::size_t i, unsigned parity) {
        for (int r = 0; me == root && r < team_->size(); ++r) {
          if (r == root) continue;
          copy_bytes(bytes_of(part(r)) + chunks.begin(i), team_->staging(parity, r),
                     chunks.bytes(i));
        }
      });
}

void ShmBackend::scatter(const Call& call, const Arrays& arrays) {
  const Buffer out = arrays.out;
  exchange(call, {});
  const int root = team_->team_rank(call.what.rank);
  const auto n = static_cast<std::size_t>(team_->size());
  const auto me = static_cast<std::size_t>(team_->rank());
  const bool is_root = team_->rank() == root;
  const auto part = [&](std::size_t r) {
    return arrays.in_part(static_cast<int>(r), call.what.count);
  };
  const Pieces pieces{out.bytes(), kChunkBytes / n / 64 * 64};
  if (is_root) move_bytes(out.data, part(me).data, out.bytes());
  in_turns(
      call, pieces.number(),
      [&](std::size_t i, std::byte* staging) {
        for (std::size_t r = 0; is_root && r < n; ++r) {
          if (r == me) continue;
          copy_bytes(staging + r * pieces.piece, bytes_of(part(r)) + pieces.begin(i),
                     pieces.bytes(i));
        }
      },
      [&](std::size_t i, unsigned parity) {
        if (is_root) return;
        copy_bytes(bytes_of(out) + pieces.begin(i),
                   team_->staging(parity, root) + me * pieces.piece, pieces.bytes(i));
      });
}

}  // namespace ddprun::worker_sdk
