#pragma once
// From a Plan to a connected backend: opens the store, introduces this rank, follows rank 0's
// decision. The I/O behind ProcessGroup::init().

#include <memory>
#include <string>
#include <vector>

#include "ddprun/store.h"
#include "worker_sdk/base/round_fence.h"
#include "worker_sdk/join/environment.h"
#include "worker_sdk/join/membership.h"
#include "worker_sdk/nccl/nccl_comm.h"
#include "worker_sdk/store/store_host.h"
#include "worker_sdk/transport/backend.h"

namespace ddprun::worker_sdk {

// The address at which a rank's peers can reach it. Only join.cc uses this.

// Returns a numeric address. Ranks of one network namespace meet on its loopback. Otherwise the
// address must not be one that only this host has, as the address of a store on this host may be;
// then the routes to the other hosts are queried.
std::string address_for_peers(const std::vector<Introduction>& hellos, int rank,
                              Clock::time_point deadline);

// The operations of errors that are not the store's.
constexpr const char* kJoining = "joining the job";
constexpr const char* kTakingSeat = "taking the seat of this rank";  // If taken by another process.

struct Joined {
  Identity identity;
  std::shared_ptr<const Roster> roster;
  std::shared_ptr<StoreHost> store_host;  // On rank 0, if no other process hosts the store.
  std::shared_ptr<Store> store;
  Rendezvous rendezvous;  // The plan's, with the port at which the store was found.
  std::unique_ptr<HostBackend> backend;
};

// What a group shares with the groups that were split off the same parent.
struct Kin {
  std::shared_ptr<NcclSiblings> siblings;
  // The parent's store, null for the first group. It is reused if no other process could reach it,
  // else opened again.
  std::shared_ptr<Store> store = {};
  // Set if the group is to be a smaller version of its parent: nccl_join.h.
  std::shared_ptr<NcclCommunicator> nccl = {};
  std::vector<int> excluded = {};
  std::shared_ptr<RoundFence> fence = {};  // Of the round; once raised, it ends the attempt.
};

// Throws Error, with this rank and host.
Joined join(const Plan& plan, std::chrono::milliseconds timeout, const Kin& kin);

}  // namespace ddprun::worker_sdk
