#pragma once
// Collectives through shared memory, for ranks of one host.
//
//   small   (<= kSmallBytes): the arrays travel with the exchange; every rank reduces all of them.
//   One
//           barrier.
//   direct  (the array comes from allocate() on every rank, at the same place): each rank reduces
//   its
//           slice of all arrays and writes it into all of them. No copies, two barriers.
//   staged  (ordinary memory): chunk by chunk; while chunk t is copied in, each rank reduces its
//   slice of
//           chunk t - 1 and copies the result of chunk t - 2 out. One barrier for each chunk.
//
// In all three, sources are reduced in the order of ranks, so that results are the same bits on
// every rank and in every run.

#include <memory>
#include <mutex>
#include <vector>

#include "worker_sdk/backend.h"
#include "worker_sdk/shm_team.h"

namespace ddprun::worker_sdk {

class ShmBackend : public Backend {
 public:
  ShmBackend(std::unique_ptr<ShmTeam> team, std::shared_ptr<SegmentSource> segments);

  const char* name() const noexcept override { return "shm"; }
  void all_reduce(const Call& call, Buffer inout) override;
  void broadcast(const Call& call, Buffer inout) override;
  void all_gather(const Call& call, Buffer in, Buffer out) override;
  void send(const Call& call, Buffer in) override;
  void recv(const Call& call, Buffer out) override;
  void barrier(const Call& call) override;
  std::shared_ptr<void> allocate(const Call& call, std::size_t bytes) override;
  void abort() noexcept override { team_->abort(); }

 private:
  // All ranks' parts of one allocate(): the part of rank r begins at r * stride.
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
  struct Slice {
    std::size_t begin = 0;  // Elements.
    std::size_t count = 0;
  };

  template <class Operation>
  void guarded(Operation operation);
  Place find(const Buffer& buffer);
  bool exchange(const Call& call, const Place& place);
  Slice slice_of(int rank, std::size_t count) const;
  void reduce_small(const Call& call, Buffer inout);
  void reduce_direct(const Call& call, Buffer inout, const Place& place);
  void reduce_staged(const Call& call, Buffer inout);
  void reduce_chunk(const Call& call, unsigned parity, std::size_t count);
  std::shared_ptr<Segment> share_segment(const Call& call, std::size_t bytes);

  std::unique_ptr<ShmTeam> team_;
  std::shared_ptr<SegmentSource> segments_;
  std::vector<std::weak_ptr<Allocation>> allocations_;
  std::uint64_t allocations_made_ = 0;
};

}  // namespace ddprun::worker_sdk
