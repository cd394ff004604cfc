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

// At which of its addresses a rank can be reached by its peers. Only join.cc uses this.

// Numeric. Ranks of one network namespace meet on its loopback. Otherwise the address must not be
// one that only this host has, as that of a store on this very host may be; asks the routes to the
// others then.
std::string address_for_peers(const std::vector<Introduction>& hellos, int rank,
                              Clock::time_point deadline);

// The operations of errors that are not the store's.
constexpr const char* kJoining = "joining the job";
constexpr const char* kTakingSeat = "taking the seat of this rank";  // Which another has taken.

struct Joined {
  Identity identity;
  std::shared_ptr<const Roster> roster;
  std::shared_ptr<StoreHost> store_host;  // On rank 0, if nobody else hosts the store.
  std::shared_ptr<Store> store;
  std::unique_ptr<HostBackend> backend;
};

// What a group shares with those that were split off the same one.
struct Kin {
  std::shared_ptr<NcclSiblings> siblings;
  // The parent's, null for the first group; it is used again where no other process could reach
  // it, else opened once more.
  std::shared_ptr<Store> store = {};
  // Of a group that is to be smaller than the one that it comes from: nccl_join.h.
  std::shared_ptr<NcclCommunicator> nccl = {};
  std::vector<int> excluded = {};
  std::shared_ptr<RoundFence> fence = {};  // Of the round that is joined; ends the attempt, too.
};

// Throws Error, with this rank and host.
Joined join(const Plan& plan, std::chrono::milliseconds timeout, const Kin& kin);

}  // namespace ddprun::worker_sdk
