#include "worker_sdk/shm_backend.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>

#include "worker_sdk/reduce.h"

namespace ddprun::worker_sdk {
namespace {

// What one rank reduces before it hands it out: small enough to be still cached then.
constexpr std::size_t kDirectBlockBytes = 16 << 10;

std::byte* bytes_of(const Buffer& buffer) { return static_cast<std::byte*>(buffer.data); }

void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

// An array cut into pieces of `piece` bytes.
struct Pieces {
  std::size_t total = 0;
  std::size_t piece = 0;

  std::size_t number() const { return (total + piece - 1) / piece; }
  std::size_t begin(std::size_t i) const { return i * piece; }
  std::size_t bytes(std::size_t i) const { return std::min(piece, total - begin(i)); }
};

}  // namespace

ShmBackend::ShmBackend(std::unique_ptr<ShmTeam> team, std::shared_ptr<SegmentSource> segments)
    : team_(std::move(team)), segments_(std::move(segments)) {}

// Whatever fails here must not keep the peers waiting.
template <class Operation>
void ShmBackend::guarded(Operation operation) {
  try {
    operation();
  } catch (const Error& error) {
    team_->give_up(error);
    throw;
  }
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

// Equal parts, begun at cache lines, in the order of ranks.
ShmBackend::Slice ShmBackend::slice_of(int rank, std::size_t count) const {
  constexpr std::size_t kGrain = 64;
  const auto n = static_cast<std::size_t>(team_->size());
  const std::size_t grains = (count + kGrain - 1) / kGrain;
  const auto edge = [&](std::size_t r) { return std::min(count, grains * r / n * kGrain); };
  const std::size_t begin = edge(static_cast<std::size_t>(rank));
  return {begin, edge(static_cast<std::size_t>(rank) + 1) - begin};
}

void ShmBackend::all_reduce(const Call& call, Buffer inout) {
  guarded([&] {
    if (inout.bytes() <= kSmallBytes) return reduce_small(call, inout);
    const Place place = find(inout);
    if (exchange(call, place)) return reduce_direct(call, inout, place);
    reduce_staged(call, inout);
  });
}

void ShmBackend::reduce_small(const Call& call, Buffer inout) {
  copy_bytes(team_->small_of_next(), inout.data, inout.bytes());
  team_->exchange(call, {.what = call.what, .number = call.number});
  const void* arrays[kShmRanksMax];
  for (int r = 0; r < team_->size(); ++r) arrays[r] = team_->small(r);
  reduce(inout.type, call.what.op, inout.data, {arrays, team_->size()}, inout.count);
}

void ShmBackend::reduce_direct(const Call& call, Buffer inout, const Place& place) {
  const std::size_t element = size_of(inout.type);
  const std::size_t step = kDirectBlockBytes / element;
  const Slice slice = slice_of(team_->rank(), inout.count);
  const void* arrays[kShmRanksMax];
  for (std::size_t done = 0; done < slice.count; done += step) {
    const std::size_t count = std::min(step, slice.count - done);
    const std::size_t at = (slice.begin + done) * element;
    for (int r = 0; r < team_->size(); ++r) arrays[r] = place.of(r) + at;
    std::byte* mine = place.of(team_->rank()) + at;
    reduce(inout.type, call.what.op, mine, {arrays, team_->size()}, count);
    for (int r = 0; r < team_->size(); ++r) copy_bytes(place.of(r) + at, mine, count * element);
  }
  team_->enter(call);
}

void ShmBackend::reduce_staged(const Call& call, Buffer inout) {
  const std::size_t element = size_of(inout.type);
  const Pieces chunks{inout.bytes(), kChunkBytes};
  const std::size_t n = chunks.number();
  for (std::size_t t = 0; t < n + 2; ++t) {
    const unsigned parity = t % 2;
    if (t >= 2) {
      copy_bytes(bytes_of(inout) + chunks.begin(t - 2), team_->result(parity), chunks.bytes(t - 2));
    }
    if (t >= 1 && t <= n) reduce_chunk(call, 1 - parity, chunks.bytes(t - 1) / element);
    if (t < n) {
      copy_bytes(team_->staging(parity, team_->rank()), bytes_of(inout) + chunks.begin(t),
                 chunks.bytes(t));
    }
    if (t <= n) team_->enter(call);
  }
}

void ShmBackend::reduce_chunk(const Call& call, unsigned parity, std::size_t count) {
  const std::size_t element = size_of(call.what.type);
  const Slice slice = slice_of(team_->rank(), count);
  const void* arrays[kShmRanksMax];
  for (int r = 0; r < team_->size(); ++r) {
    arrays[r] = team_->staging(parity, r) + slice.begin * element;
  }
  reduce(call.what.type, call.what.op, team_->result(parity) + slice.begin * element,
         {arrays, team_->size()}, slice.count);
}

void ShmBackend::broadcast(const Call& call, Buffer inout) {
  guarded([&] {
    const int root = call.what.rank;
    const bool is_root = team_->rank() == root;
    const Place place = find(inout);
    if (exchange(call, place)) {
      if (!is_root) copy_bytes(inout.data, place.of(root), inout.bytes());
      return team_->enter(call);
    }
    const Pieces chunks{inout.bytes(), kChunkBytes};
    for (std::size_t t = 0; t <= chunks.number(); ++t) {
      if (t >= 1 && !is_root) {
        copy_bytes(bytes_of(inout) + chunks.begin(t - 1), team_->staging((t - 1) % 2, root),
                   chunks.bytes(t - 1));
      }
      if (t == chunks.number()) break;
      if (is_root) {
        copy_bytes(team_->staging(t % 2, root), bytes_of(inout) + chunks.begin(t), chunks.bytes(t));
      }
      team_->enter(call);
    }
  });
}

void ShmBackend::all_gather(const Call& call, Buffer in, Buffer out) {
  guarded([&] {
    exchange(call, {});
    const Pieces chunks{in.bytes(), kChunkBytes};
    const int me = team_->rank();
    const auto part = [&](int r) {
      return bytes_of(out) + static_cast<std::size_t>(r) * in.bytes();
    };
    if (in.bytes() > 0) std::memmove(part(me), in.data, in.bytes());
    for (std::size_t t = 0; t <= chunks.number(); ++t) {
      for (int r = 0; t >= 1 && r < team_->size(); ++r) {
        if (r == me) continue;
        copy_bytes(part(r) + chunks.begin(t - 1), team_->staging((t - 1) % 2, r),
                   chunks.bytes(t - 1));
      }
      if (t == chunks.number()) break;
      copy_bytes(team_->staging(t % 2, me), part(me) + chunks.begin(t), chunks.bytes(t));
      team_->enter(call);
    }
  });
}

void ShmBackend::barrier(const Call& call) {
  guarded([&] { exchange(call, {}); });
}

void ShmBackend::send(const Call& call, Buffer in) {
  guarded([&] {
    const int to = call.what.rank;
    Mailbox& box = team_->mailbox(team_->rank(), to);
    const Pieces parcels{in.bytes(), kParcelBytes};
    for (std::size_t i = 0; i < std::max<std::size_t>(1, parcels.number()); ++i) {
      const std::uint32_t sent = box.sent.value.load(std::memory_order_relaxed);
      team_->await(call, box.taken, sent - 1, to);  // Of the two places one is free again.
      box.parcels[sent % 2] = {call.what, call.number};
      if (i < parcels.number()) {
        copy_bytes(team_->parcel(team_->rank(), to, sent % 2), bytes_of(in) + parcels.begin(i),
                   parcels.bytes(i));
      }
      publish(box.sent, sent + 1);
    }
  });
}

void ShmBackend::recv(const Call& call, Buffer out) {
  guarded([&] {
    const int from = call.what.rank;
    Mailbox& box = team_->mailbox(from, team_->rank());
    const Pieces parcels{out.bytes(), kParcelBytes};
    for (std::size_t i = 0; i < std::max<std::size_t>(1, parcels.number()); ++i) {
      const std::uint32_t taken = box.taken.value.load(std::memory_order_relaxed);
      team_->await(call, box.sent, taken + 1, from);
      const Parcel& parcel = box.parcels[taken % 2];
      if (parcel.what.type != out.type || parcel.what.count != out.count) {
        throw failure(team_->roster(), call, ErrorKind::mismatch, from,
                      team_->roster().name(from) + " called " +
                          to_string(Call{.what = parcel.what, .number = parcel.number}));
      }
      if (i < parcels.number()) {
        copy_bytes(bytes_of(out) + parcels.begin(i), team_->parcel(from, team_->rank(), taken % 2),
                   parcels.bytes(i));
      }
      publish(box.taken, taken + 1);
    }
  });
}

// Rank 0 makes the segment, the others open it, and nobody goes on before all have told how that
// went.
std::shared_ptr<Segment> ShmBackend::share_segment(const Call& call, std::size_t bytes) {
  OfferedSegment offered;
  std::shared_ptr<Segment> segment;
  Posting mine{.what = call.what, .number = call.number};
  const auto attempt = [&](auto action) {
    try {
      action();
    } catch (const std::system_error& error) {
      mine.error = error.code().value() != 0 ? error.code().value() : ENOMEM;
    }
  };
  const auto exchange_errors = [&] {
    team_->exchange(call, mine);
    for (int r = 0; r < team_->size(); ++r) {
      const int error = team_->posting(r).error;
      if (error == 0) continue;
      throw failure(team_->roster(), call, ErrorKind::system, r,
                    team_->roster().name(r) + " cannot share memory: " + std::strerror(error));
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

}  // namespace ddprun::worker_sdk
