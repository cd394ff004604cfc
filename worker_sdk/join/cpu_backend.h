#pragma once
// Collectives of ranks on several hosts, more than one on at least one of them: through shared
// memory inside a host, over Gloo between hosts.
//
//   host A                     host B
//   rank 0, rank 1, rank 2     rank 3, rank 4
//     1. inside each host, by shm: the first `owners` ranks get the host's sum, each of a slice;
//        owners: as many as the host with the fewest ranks has (here 2, slices 0 and 1);
//     2. between hosts, by Gloo: owners of equal slices (0 and 3, 1 and 4) all-reduce them, so that
//        each byte crosses the network once each way and all owners drive it together;
//     3. inside each host, by shm: all ranks get all slices.
//
// all_reduce, broadcast and barrier go this way, messages the shortest; the other collectives over
// Gloo alone. Sums are made in the order of ranks inside each host, then in that of hosts: the same
// bits everywhere and in every run. f16 and bf16 are rounded once inside the host and once between.
//
// A rank that fails notifies both sides, the team and Gloo's peers (diagnosis.h), so that all blame
// the same rank.

#include "worker_sdk/gloo/gloo_backend.h"
#include "worker_sdk/shm/shm_backend.h"

namespace ddprun::worker_sdk {

class CpuBackend : public HostBackend {
 public:
  // `hosts`: the group's ranks by host, each in rising order. `gloo` joins all of them, `shm` those
  // of this rank's host.
  CpuBackend(std::shared_ptr<const Roster> roster, std::vector<std::vector<int>> hosts,
             std::unique_ptr<ShmBackend> shm, std::unique_ptr<GlooBackend> gloo);

  const char* name() const noexcept override { return "cpu"; }
  void carry_out(const Call& call, const Arrays& arrays) override;
  std::shared_ptr<void> allocate(const Call& call, std::size_t bytes) override;
  std::chrono::nanoseconds cpu_time() const override { return gloo_->cpu_time(); }
  void abort() noexcept override;
  void dissolve() noexcept override;
  void lose(int rank, const std::string& why) noexcept override;

 private:
  template <class Operation>
  void guarded(const Call& call, Operation operation);
  void all_reduce(const Call& call, Buffer inout);
  void broadcast(const Call& call, Buffer inout);
  void barrier(const Call& call);
  bool is_here(int rank) const { return shm_->team().team_rank(rank) >= 0; }

  std::shared_ptr<const Roster> roster_;
  std::vector<std::vector<int>> hosts_;
  int owners_ = 0;
  std::unique_ptr<ShmBackend> shm_;
  std::unique_ptr<GlooBackend> gloo_;
};

}  // namespace ddprun::worker_sdk
