// ShmBackend's reductions: small, direct and staged, of all ranks or for the owners of slices.

#include "common/assert.h"
#include "worker_sdk/elastic/combine.h"
#include "worker_sdk/shm/shm_backend.h"
#include "worker_sdk/shm/shm_pieces.h"
#include "worker_sdk/transport/reduce.h"

namespace ddprun::worker_sdk {
namespace {

// What one rank reduces before it hands it out: small enough to be still cached then.
constexpr std::size_t kDirectBlockBytes = 16 << 10;

ShmBackend::Slice overlap(ShmBackend::Slice a, ShmBackend::Slice b) {
  const std::size_t begin = std::max(a.begin, b.begin);
  const std::size_t end = std::min(a.begin + a.count, b.begin + b.count);
  return {begin, end > begin ? end - begin : 0};
}

Buffer part_of(const Buffer& whole, ShmBackend::Slice slice) {
  return {bytes_of(whole) + slice.begin * size_of(whole.type), slice.count, whole.type};
}

}  // namespace

// Equal parts, begun at cache lines, in the order of ranks.
ShmBackend::Slice ShmBackend::slice_of(int rank, int owners, std::size_t count) {
  constexpr std::size_t kGrain = 64;
  const auto n = static_cast<std::size_t>(owners);
  const std::size_t grains = (count + kGrain - 1) / kGrain;
  const auto edge = [&](std::size_t r) { return std::min(count, grains * r / n * kGrain); };
  if (rank >= owners) return {count, 0};
  const std::size_t begin = edge(static_cast<std::size_t>(rank));
  return {begin, edge(static_cast<std::size_t>(rank) + 1) - begin};
}

void ShmBackend::all_reduce(const Call& call, const Arrays& arrays) {
  const Buffer inout = arrays.out;
  if (arrays.combine) {
    const Place place = find(inout);
    const bool direct = exchange(call, place);
    DDPRUN_ASSERT(direct);
    return combine_direct(call, inout, place, *arrays.combine);
  }
  const Reduction how{call.what.op};
  if (inout.bytes() <= kSmallBytes) return reduce_small(call, inout, how);
  const Place place = find(inout);
  if (exchange(call, place)) return reduce_direct(call, inout, place);
  reduce_staged(call, inout, {0, inout.count}, how);
}

void ShmBackend::reduce_to_owners(const Call& call, Buffer inout, int owners, ReduceOp op,
                                  int averaged) {
  const Reduction how{op, averaged};
  guarded([&] {
    if (inout.bytes() <= kSmallBytes) return reduce_small(call, inout, how);
    const Place place = find(inout);
    if (exchange(call, place)) return reduce_direct_to_owners(call, inout, place, owners, how);
    reduce_staged(call, inout, slice_of(team_->rank(), owners, inout.count), how);
  });
}

void ShmBackend::reduce_small(const Call& call, Buffer inout, Reduction how, bool wanted) {
  copy_bytes(team_->small_of_next(), inout.data, inout.bytes());
  team_->exchange(call, {.what = call.what, .number = call.number});
  if (!wanted) return;
  const void* arrays[kShmRanksMax];
  for (int r = 0; r < team_->size(); ++r) arrays[r] = team_->small(r);
  // The peers are reading the copy, so its cache lines are on their way to them.
  arrays[team_->rank()] = inout.data;
  worker_sdk::reduce(inout.type, how.op, inout.data, {arrays, team_->size()}, inout.count,
                     how.averaged);
}

void ShmBackend::reduce_direct(const Call& call, Buffer inout, const Place& place) {
  const std::size_t element = size_of(inout.type);
  const std::size_t step = kDirectBlockBytes / element;
  const Slice slice = my_slice(inout.count);
  const void* arrays[kShmRanksMax];
  for (std::size_t done = 0; done < slice.count; done += step) {
    const std::size_t count = std::min(step, slice.count - done);
    const std::size_t at = (slice.begin + done) * element;
    for (int r = 0; r < team_->size(); ++r) arrays[r] = place.of(r) + at;
    std::byte* mine = place.of(team_->rank()) + at;
    worker_sdk::reduce(inout.type, call.what.op, mine, {arrays, team_->size()}, count);
    for (int r = 0; r < team_->size(); ++r) copy_bytes(place.of(r) + at, mine, count * element);
  }
  team_->enter(call);
}

void ShmBackend::combine_direct(const Call& call, Buffer inout, const Place& place,
                                const Combine& how) {
  const std::size_t element = size_of(inout.type);
  const std::size_t step = kDirectBlockBytes / element;
  const Slice slice = my_slice(inout.count);
  const void* arrays[kShmRanksMax];
  for (std::size_t done = 0; done < slice.count; done += step) {
    const std::size_t first = slice.begin + done, count = std::min(step, slice.count - done);
    for (int r = 0; r < team_->size(); ++r) arrays[r] = place.of(r) + first * element;
    std::byte* mine = place.of(team_->rank()) + first * element;
    how.combine(first, count, arrays, team_->size(), mine);
    for (int r = 0; r < team_->size(); ++r) {
      copy_bytes(place.of(r) + first * element, mine, count * element);
    }
  }
  team_->enter(call);
}

// All ranks take their part in the work, however few own the result. Nobody but this rank looks at
// its part of the arrays until all are done.
void ShmBackend::reduce_direct_to_owners(const Call& call, Buffer inout, const Place& place,
                                         int owners, Reduction how) {
  const void* arrays[kShmRanksMax];
  for (int owner = 0; owner < owners; ++owner) {
    const Slice part = overlap(my_slice(inout.count), slice_of(owner, owners, inout.count));
    if (part.count == 0) continue;
    const std::size_t at = part.begin * size_of(inout.type);
    for (int r = 0; r < team_->size(); ++r) arrays[r] = place.of(r) + at;
    worker_sdk::reduce(inout.type, how.op, place.of(owner) + at, {arrays, team_->size()},
                       part.count, how.averaged);
  }
  team_->enter(call);
}

void ShmBackend::reduce_staged(const Call& call, Buffer inout, Slice wanted, Reduction how) {
  const std::size_t step = kChunkBytes / size_of(inout.type);
  const std::size_t n = (inout.count + step - 1) / step;
  const auto chunk = [&](std::size_t t) {
    return Slice{t * step, std::min(step, inout.count - t * step)};
  };
  for (std::size_t t = 0; t < n + 2; ++t) {
    const unsigned parity = t % 2;
    if (t >= 2) take_chunk(part_of(inout, chunk(t - 2)), slice_in(chunk(t - 2), wanted), parity);
    if (t >= 1 && t <= n) {
      reduce_chunk(part_of(inout, chunk(t - 1)), slice_in(chunk(t - 1), wanted), 1 - parity, how);
    }
    if (t < n) stage_chunk(part_of(inout, chunk(t)), parity);
    if (t <= n) team_->enter(call);
  }
}

// `whole` as far as it lies in `part`, counted from the beginning of `part`.
ShmBackend::Slice ShmBackend::slice_in(Slice part, Slice whole) const {
  const Slice both = overlap(part, whole);
  return {both.count == 0 ? 0 : both.begin - part.begin, both.count};
}

// The others' slices; this rank reads its own from where it is.
void ShmBackend::stage_chunk(Buffer chunk, unsigned parity) {
  const std::size_t element = size_of(chunk.type);
  const Slice mine = my_slice(chunk.count);
  const std::size_t end = mine.begin + mine.count;
  std::byte* staging = team_->staging(parity, team_->rank());
  copy_bytes(staging, chunk.data, mine.begin * element);
  copy_bytes(staging + end * element, bytes_of(chunk) + end * element,
             (chunk.count - end) * element);
}

void ShmBackend::reduce_chunk(Buffer chunk, Slice wanted, unsigned parity, Reduction how) {
  const std::size_t element = size_of(chunk.type);
  const Slice mine = my_slice(chunk.count);
  const std::size_t at = mine.begin * element;
  const void* arrays[kShmRanksMax];
  for (int r = 0; r < team_->size(); ++r) {
    arrays[r] = r == team_->rank() ? bytes_of(chunk) + at : team_->staging(parity, r) + at;
  }
  std::byte* result = team_->result(parity);
  worker_sdk::reduce(chunk.type, how.op, result + at, {arrays, team_->size()}, mine.count,
                     how.averaged);
  const Slice kept = overlap(mine, wanted);
  copy_bytes(bytes_of(chunk) + kept.begin * element, result + kept.begin * element,
             kept.count * element);
}

// What the others made.
void ShmBackend::take_chunk(Buffer chunk, Slice wanted, unsigned parity) {
  const std::size_t element = size_of(chunk.type);
  const Slice mine = my_slice(chunk.count);
  const std::size_t end = mine.begin + mine.count;
  for (const Slice theirs : {Slice{0, mine.begin}, Slice{end, chunk.count - end}}) {
    const Slice taken = overlap(theirs, wanted);
    copy_bytes(bytes_of(chunk) + taken.begin * element,
               team_->result(parity) + taken.begin * element, taken.count * element);
  }
}

// The root's array is its own, or a copy of it elsewhere; the others' stay as they are.
void ShmBackend::reduce(const Call& call, const Arrays& arrays) {
  const int root = team_->team_rank(call.what.rank);
  const bool is_root = team_->rank() == root;
  if (is_root) move_bytes(arrays.out.data, arrays.in.data, arrays.in.bytes());
  const Buffer inout = is_root ? arrays.out : arrays.in;
  const Reduction how{call.what.op};
  if (inout.bytes() <= kSmallBytes) return reduce_small(call, inout, how, is_root);
  const Place place = find(inout);
  if (!exchange(call, place)) {
    return reduce_staged(call, inout, {0, is_root ? inout.count : 0}, how);
  }
  const Slice mine = my_slice(inout.count);
  const std::size_t at = mine.begin * size_of(inout.type);
  const void* sources[kShmRanksMax];
  for (int r = 0; r < team_->size(); ++r) sources[r] = place.of(r) + at;
  worker_sdk::reduce(inout.type, how.op, place.of(root) + at, {sources, team_->size()}, mine.count);
  team_->enter(call);
}

void ShmBackend::reduce_scatter(const Call& call, const Arrays& arrays) {
  const Buffer out = arrays.out;
  const auto n = static_cast<std::size_t>(team_->size());
  const auto me = static_cast<std::size_t>(team_->rank());
  const auto part = [&](std::size_t r) {
    return arrays.in_part(static_cast<int>(r), call.what.count);
  };
  const void* sources[kShmRanksMax];
  const Place place = arrays.ins.empty() ? find(arrays.in) : Place();
  if (exchange(call, place)) {
    for (int r = 0; r < team_->size(); ++r) sources[r] = place.of(r) + me * out.bytes();
    worker_sdk::reduce(out.type, call.what.op, out.data, {sources, team_->size()}, out.count);
    return team_->enter(call);
  }
  const std::size_t piece = kChunkBytes / n / 64 * 64;
  const auto pieces = [&](std::size_t r) { return Pieces{part(r).bytes(), piece}; };
  std::size_t turns = 0;
  for (std::size_t r = 0; r < n; ++r) turns = std::max(turns, pieces(r).number());
  const auto from = [&](std::size_t r, std::size_t i) {
    return bytes_of(part(r)) + pieces(r).begin(i);
  };
  in_turns(
      call, turns,
      [&](std::size_t i, std::byte* staging) {
        for (std::size_t r = 0; r < n; ++r) {
          if (r != me) copy_bytes(staging + r * piece, from(r, i), pieces(r).bytes(i));
        }
      },
      [&](std::size_t i, unsigned parity) {
        for (std::size_t r = 0; r < n; ++r) {
          sources[r] =
              r == me ? from(r, i) : team_->staging(parity, static_cast<int>(r)) + me * piece;
        }
        worker_sdk::reduce(out.type, call.what.op, bytes_of(out) + pieces(me).begin(i),
                           {sources, team_->size()}, pieces(me).bytes(i) / size_of(out.type));
      });
}

}  // namespace ddprun::worker_sdk
