#include "worker_sdk/shm/shm_backend.h"

#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "common/assert.h"
#include "worker_sdk/elastic/combine.h"
#include "worker_sdk/transport/reduce.h"

namespace ddprun::worker_sdk {

ShmBackend::ShmBackend(std::unique_ptr<ShmTeam> team, std::shared_ptr<SegmentSource> segments)
    : team_(std::move(team)), segments_(std::move(segments)) {}

void ShmBackend::carry_out(const Call& call, const Arrays& arrays) {
  guarded([&] { Verbs::carry_out(*this, call, arrays); });
}

ShmBackend::Place ShmBackend::find(const Buffer& buffer) {
  std::erase_if(allocations_, [](const auto& weak) { return weak.expired(); });
  for (const auto& weak : allocations_) {
    const std::shared_ptr<Allocation> allocation = weak.lock();
    if (!allocation) continue;
    const std::byte* mine =
        allocation->segment->data() + static_cast<std::size_t>(team_->rank()) * allocation->stride;
    const std::less_equal<> not_after;
    if (not_after(mine, bytes_of(buffer)) &&
        not_after(bytes_of(buffer) + buffer.bytes(), mine + allocation->stride)) {
      return {allocation, static_cast<std::size_t>(bytes_of(buffer) - mine)};
    }
  }
  return {};
}

// True if every rank's array lies at the same place of the same allocation.
bool ShmBackend::exchange(const Call& call, const Place& place) {
  Posting mine{.what = call.what, .number = call.number};
  if (place.allocation) mine.memory_id = place.allocation->id, mine.offset = place.offset;
  team_->exchange(call, mine);
  if (mine.memory_id == 0) return false;
  for (int r = 0; r < team_->size(); ++r) {
    const Posting& theirs = team_->posting(r);
    if (theirs.memory_id != mine.memory_id || theirs.offset != mine.offset) return false;
  }
  return true;
}

void ShmBackend::barrier(const Call& call, const Arrays&) { exchange(call, {}); }

void ShmBackend::send(const Call& call, const Arrays& arrays) {
  const Buffer in = arrays.in;
  const int to = team_->team_rank(call.what.rank);
  Mailbox& box = team_->mailbox(team_->rank(), to);
  const Pieces parcels{in.bytes(), kParcelBytes};
  for (std::size_t i = 0; i < std::max<std::size_t>(1, parcels.number()); ++i) {
    const std::uint32_t sent = box.sent.value.load(std::memory_order_relaxed);
    team_->await(call, box.taken, sent - 1, to);  // One of the two places is free again.
    box.parcels[sent % 2] = {call.what, call.number};
    if (i < parcels.number()) {
      copy_bytes(team_->parcel(team_->rank(), to, sent % 2), bytes_of(in) + parcels.begin(i),
                 parcels.bytes(i));
    }
    publish(box.sent, sent + 1);
  }
}

void ShmBackend::recv(const Call& call, const Arrays& arrays) {
  const Buffer out = arrays.out;
  const int from = team_->team_rank(call.what.rank);
  Mailbox& box = team_->mailbox(from, team_->rank());
  const Pieces parcels{out.bytes(), kParcelBytes};
  for (std::size_t i = 0; i < std::max<std::size_t>(1, parcels.number()); ++i) {
    const std::uint32_t taken = box.taken.value.load(std::memory_order_relaxed);
    team_->await(call, box.sent, taken + 1, from);
    const Parcel& parcel = box.parcels[taken % 2];
    if (parcel.what.type != out.type || parcel.what.count != out.count) {
      throw failure(team_->roster(), call, ErrorKind::mismatch, call.what.rank,
                    team_->name(from) + " called " +
                        to_string(Call{.what = parcel.what, .number = parcel.number}));
    }
    if (i < parcels.number()) {
      copy_bytes(bytes_of(out) + parcels.begin(i), team_->parcel(from, team_->rank(), taken % 2),
                 parcels.bytes(i));
    }
    publish(box.taken, taken + 1);
  }
}

// Rank 0 makes the segment, the others open it, and no rank continues before all have reported the
// result. If rank 0 dies after its report, the segment is gone: ESRCH stands for that.
std::shared_ptr<Segment> ShmBackend::share_segment(const Call& call, std::size_t bytes) {
  OfferedSegment offered;
  std::shared_ptr<Segment> segment;
  Posting mine{.what = call.what, .number = call.number};
  const auto attempt = [&](auto action) {
    try {
      action();
    } catch (const std::system_error& error) {
      mine.error = error.code().value() != 0 ? error.code().value() : ENOMEM;
    } catch (const std::bad_alloc&) {
      mine.error = ENOMEM;
    }
  };
  const auto exchange_errors = [&] {
    team_->exchange(call, mine);
    for (int r = 0; r < team_->size(); ++r) {
      const int error = team_->posting(r).error;
      if (error == 0) continue;
      if (error == ESRCH) {
        throw failure(team_->roster(), call, ErrorKind::peer_lost, team_->group_rank(0),
                      team_->name(0) + " has died");
      }
      throw failure(team_->roster(), call, ErrorKind::system, team_->group_rank(r),
                    team_->name(r) + " cannot share memory: " + std::strerror(error));
    }
  };
  if (team_->rank() == 0) {
    attempt([&] {
      offered = segments_->create(bytes);
      segment = offered.segment;
      mine.segment = offered.name;
    });
  }
  exchange_errors();
  if (team_->rank() != 0) {
    attempt([&] { segment = segments_->open(team_->posting(0).segment); });
    constexpr std::chrono::milliseconds kEnding{1000};  // From the loss of its files to its end.
    if (mine.error != 0 && team_->ends(0, kEnding)) mine.error = ESRCH;
  }
  exchange_errors();
  return segment;
}

std::shared_ptr<void> ShmBackend::allocate(const Call& call, std::size_t bytes) {
  constexpr std::size_t kPage = 4096;
  auto allocation = std::make_shared<Allocation>();
  allocation->id = ++allocations_made_;
  allocation->stride = std::max<std::size_t>(1, (bytes + kPage - 1) / kPage) * kPage;
  std::byte* mine = nullptr;
  guarded([&] {
    allocation->segment =
        share_segment(call, allocation->stride * static_cast<std::size_t>(team_->size()));
    mine =
        allocation->segment->data() + static_cast<std::size_t>(team_->rank()) * allocation->stride;
    // Touched by its rank first, the memory is near that rank's CPU.
    std::memset(mine, 0, allocation->stride);
    team_->enter(call);
  });
  allocations_.push_back(allocation);
  return {allocation, mine};
}

// ShmBackend's collectives that only move bytes: chunk by chunk through the staging slots, or
// straight between arrays that all ranks have in the same place of shared memory.
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

// Exchanges the counts of all parts, of which each rank has its own lists. Throws if a rank sends
// this one another number than it expects.
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

// ShmBackend's reductions: small, direct and staged, of all ranks or for the owners of slices.

namespace {

// The part that a rank reduces before it copies it out: small enough to be still cached then.
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

// All ranks take part in the work, even if few own the result. No other rank accesses this rank's
// part of the arrays until all are done.
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

// Stages the others' slices; this rank reads its own slice from its array.
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

// Copies the results of the other ranks out.
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
