#include "worker_sdk/shm/shm_backend.h"

#include <sys/mman.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <system_error>

#include "worker_sdk/shm/shm_pieces.h"

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
    team_->await(call, box.taken, sent - 1, to);  // Of the two places one is free again.
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

// Rank 0 makes the segment, the others open it, and nobody goes on before all have told how that
// went. If rank 0 dies meanwhile, after it has told, the segment is gone: ESRCH stands for that.
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

}  // namespace ddprun::worker_sdk
