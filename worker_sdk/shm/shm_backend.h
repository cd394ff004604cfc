#pragma once
// Collectives through shared memory, for ranks of one host.
//
//   small   (<= kSmallBytes): the arrays travel with the exchange; every rank reduces all of them.
//           One barrier.
//   direct  (the array is from allocate() on every rank, at the same place): each rank reduces
//           its slice of all arrays and writes it into all of them. No copies, two barriers.
//   staged  (ordinary memory): chunk by chunk; while the others' slices of chunk t are copied in,
//           each rank reduces its own slice of chunk t - 1 and copies the others' results of chunk
//           t - 2 out. One barrier per chunk.
//
// In all three, sources are reduced in the order of ranks, so that results are the same bits on
// every rank and in every run.

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "ddprun/types.h"
#include "worker_sdk/base/system_limits.h"
#include "worker_sdk/shm/shm_team.h"
#include "worker_sdk/transport/backend.h"

namespace ddprun::worker_sdk {

// An array cut into pieces of `piece` bytes.
struct Pieces {
  std::size_t total = 0;
  std::size_t piece = 0;

  std::size_t number() const { return (total + piece - 1) / piece; }
  std::size_t begin(std::size_t i) const { return std::min(total, i * piece); }
  std::size_t bytes(std::size_t i) const { return std::min(piece, total - begin(i)); }
};

class ShmBackend : public HostBackend {
 public:
  ShmBackend(std::unique_ptr<ShmTeam> team, std::shared_ptr<SegmentSource> segments);

  const char* name() const noexcept override { return "shm"; }
  void carry_out(const Call& call, const Arrays& arrays) override;
  std::shared_ptr<void> allocate(const Call& call, std::size_t bytes) override;
  bool combines() const noexcept override { return true; }
  void abort() noexcept override { team_->abort(); }
  void lose(int rank, const std::string& why) noexcept override { team_->lose(rank, why); }

  // The parts of an all_reduce for cpu_backend.h, if the team is only a part of the group. The
  // array is cut into equal slices, one for each rank below `owners`.
  struct Slice {
    std::size_t begin = 0;  // Elements.
    std::size_t count = 0;
  };
  static Slice slice_of(int rank, int owners, std::size_t count);
  // The owners get the team's reduction in their slices; the rest of the arrays becomes garbage.
  void reduce_to_owners(const Call& call, Buffer inout, int owners, ReduceOp op, int averaged);
  // All ranks get all slices from their owners.
  void gather_from_owners(const Call& call, Buffer inout, int owners);
  // A broadcast; `root` is the root's rank in the team.
  void broadcast_from(const Call& call, Buffer inout, int root);
  ShmTeam& team() { return *team_; }

 private:
  friend Verbs;
  Verb all_reduce, reduce, reduce_scatter, broadcast, all_gather, all_to_all, gather, scatter;
  Verb send, recv, barrier;

  // The parts of all ranks of one allocate(): the part of rank r begins at r * stride.
  struct Allocation {
    std::uint64_t id = 0;
    std::size_t stride = 0;
    std::shared_ptr<Segment> segment;
  };
  struct Place {
    std::shared_ptr<Allocation> allocation;  // Null: ordinary memory.
    std::size_t offset = 0;
    std::byte* of(int rank) const {
      return allocation->segment->data() + static_cast<std::size_t>(rank) * allocation->stride +
             offset;
    }
  };
  struct Reduction {
    ReduceOp op = ReduceOp::sum;
    int averaged = 0;  // avg divides by this; 0: by the size of the team.
  };

  // Whatever fails in `operation` must not keep the peers waiting.
  template <class Operation>
  void guarded(Operation operation) {
    try {
      operation();
    } catch (const Error& error) {
      team_->give_up(error);
      throw;
    } catch (const std::exception& error) {  // No memory, for example.
      team_->give_up(as_error(error, {}));
      throw;
    }
  }
  Place find(const Buffer& buffer);
  bool exchange(const Call& call, const Place& place);
  Slice my_slice(std::size_t count) const { return slice_of(team_->rank(), team_->size(), count); }
  Slice slice_in(Slice part, Slice whole) const;
  void reduce_small(const Call& call, Buffer inout, Reduction how, bool wanted = true);
  void reduce_direct(const Call& call, Buffer inout, const Place& place);
  void combine_direct(const Call& call, Buffer inout, const Place& place, const Combine& how);
  void reduce_direct_to_owners(const Call& call, Buffer inout, const Place& place, int owners,
                               Reduction how);
  void reduce_staged(const Call& call, Buffer inout, Slice wanted, Reduction how);
  void stage_chunk(Buffer chunk, unsigned parity);
  void reduce_chunk(Buffer chunk, Slice wanted, unsigned parity, Reduction how);
  void take_chunk(Buffer chunk, Slice wanted, unsigned parity);
  // One barrier per turn: while all ranks stage(i, my slot), all have what was staged before to
  // take(i - 1, its parity). Call this after an exchange: before it, ranks may still read the
  // slots.
  template <class Stage, class Take>
  void in_turns(const Call& call, std::size_t turns, Stage stage, Take take) {
    for (std::size_t t = 0; t <= turns; ++t) {
      if (t >= 1) take(t - 1, static_cast<unsigned>((t - 1) % 2));
      if (t == turns) return;
      stage(t, team_->staging(t % 2, team_->rank()));
      team_->enter(call);
    }
  }
  std::vector<std::size_t> exchange_parts(const Call& call, const Arrays& arrays);
  std::shared_ptr<Segment> share_segment(const Call& call, std::size_t bytes);

  std::unique_ptr<ShmTeam> team_;
  std::shared_ptr<SegmentSource> segments_;
  std::vector<std::weak_ptr<Allocation>> allocations_;
  std::uint64_t allocations_made_ = 0;
};

}  // namespace ddprun::worker_sdk
