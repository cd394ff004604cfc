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
  const Buffer in = arrays.in, out = arrays.out;
  const int me = team_->rank();
  const auto at = [&](int r) { return static_cast<std::size_t>(r) * in.bytes(); };
  const Place place = find(out);
  if (exchange(call, place)) {
    for (int r = 0; in.bytes() > 0 && r < team_->size(); ++r) {
      std::memmove(place.of(r) + at(me), in.data, in.bytes());
    }
    return team_->enter(call);
  }
  if (in.bytes() > 0) std::memmove(bytes_of(out) + at(me), in.data, in.bytes());
  const Pieces chunks{in.bytes(), kChunkBytes};
  in_turns(
      call, chunks.number(),
      [&](std::size_t i, std::byte* staging) {
        copy_bytes(staging, bytes_of(out) + at(me) + chunks.begin(i), chunks.bytes(i));
      },
      [&](std::size_t i, unsigned parity) {
        for (int r = 0; r < team_->size(); ++r) {
          if (r == me) continue;
          copy_bytes(bytes_of(out) + at(r) + chunks.begin(i), team_->staging(parity, r),
                     chunks.bytes(i));
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

// Each rank's staging slot holds one piece for each rank.
void ShmBackend::all_to_all(const Call& call, const Arrays& arrays) {
  const Buffer in = arrays.in, out = arrays.out;
  exchange(call, {});
  const auto n = static_cast<std::size_t>(team_->size());
  const auto me = static_cast<std::size_t>(team_->rank());
  const std::size_t part = in.bytes() / n;
  const Pieces pieces{part, kChunkBytes / n / 64 * 64};
  copy_bytes(bytes_of(out) + me * part, bytes_of(in) + me * part, part);
  in_turns(
      call, pieces.number(),
      [&](std::size_t i, std::byte* staging) {
        for (std::size_t r = 0; r < n; ++r) {
          if (r == me) continue;
          copy_bytes(staging + r * pieces.piece, bytes_of(in) + r * part + pieces.begin(i),
                     pieces.bytes(i));
        }
      },
      [&](std::size_t i, unsigned parity) {
        for (std::size_t r = 0; r < n; ++r) {
          if (r == me) continue;
          copy_bytes(bytes_of(out) + r * part + pieces.begin(i),
                     team_->staging(parity, static_cast<int>(r)) + me * pieces.piece,
                     pieces.bytes(i));
        }
      });
}

void ShmBackend::gather(const Call& call, const Arrays& arrays) {
  const Buffer in = arrays.in, out = arrays.out;
  exchange(call, {});
  const int root = team_->team_rank(call.what.rank);
  const int me = team_->rank();
  const auto at = [&](int r) { return static_cast<std::size_t>(r) * in.bytes(); };
  const Pieces chunks{in.bytes(), kChunkBytes};
  if (me == root && in.bytes() > 0) std::memmove(bytes_of(out) + at(me), in.data, in.bytes());
  in_turns(
      call, chunks.number(),
      [&](std::size_t i, std::byte* staging) {
        if (me == root) return;
        copy_bytes(staging, bytes_of(in) + chunks.begin(i), chunks.bytes(i));
      },
      [&](std::size_t i, unsigned parity) {
        for (int r = 0; me == root && r < team_->size(); ++r) {
          if (r == root) continue;
          copy_bytes(bytes_of(out) + at(r) + chunks.begin(i), team_->staging(parity, r),
                     chunks.bytes(i));
        }
      });
}

void ShmBackend::scatter(const Call& call, const Arrays& arrays) {
  const Buffer in = arrays.in, out = arrays.out;
  exchange(call, {});
  const int root = team_->team_rank(call.what.rank);
  const auto n = static_cast<std::size_t>(team_->size());
  const auto me = static_cast<std::size_t>(team_->rank());
  const bool is_root = team_->rank() == root;
  const Pieces pieces{out.bytes(), kChunkBytes / n / 64 * 64};
  if (is_root && out.bytes() > 0) {
    std::memmove(out.data, bytes_of(in) + me * out.bytes(), out.bytes());
  }
  in_turns(
      call, pieces.number(),
      [&](std::size_t i, std::byte* staging) {
        for (std::size_t r = 0; is_root && r < n; ++r) {
          if (r == me) continue;
          copy_bytes(staging + r * pieces.piece, bytes_of(in) + r * out.bytes() + pieces.begin(i),
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
