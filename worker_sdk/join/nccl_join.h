#pragma once
// From a group that is connected over Gloo to one that is connected over NCCL. Used by join.cc.
//
//   each rank loads NCCL, says what it has -> rank 0 objects, naming the odd one, or not
//   the roots make fresh unique ids        -> every rank joins, within a part of the deadline
//   each rank says whether it has joined   -> rank 0: go, or all again with new ids
//
// The last step is what a stray connection to NCCL's bootstrap port makes necessary: it hangs a
// join for ever.

#include <functional>
#include <memory>
#include <string>

#include "ddprun/store.h"
#include "worker_sdk/base/round_fence.h"
#include "worker_sdk/gloo/gloo_backend.h"
#include "worker_sdk/join/environment.h"
#include "worker_sdk/join/meeting.h"
#include "worker_sdk/nccl/nccl_comm.h"

namespace ddprun::worker_sdk {

// A group's store once more, for the explanation of a failure: the group's own connection may be in
// the middle of a call. Used by join.cc.

// Where the program has the store, that is `given`, which serves several threads. The function may
// throw Error.
std::function<std::shared_ptr<Store>()> reopening(const Rendezvous& at,
                                                  std::shared_ptr<Store> given);

struct NcclJoinOptions {
  std::shared_ptr<const Roster> roster;
  Identity identity;
  GpuWish wish;
  std::vector<std::string> domains;  // By rank: equal for ranks of one host. Empty: alone.
  Store* keys = nullptr;             // The store with the group's prefix; null in a world of one,
  Meeting* meeting = nullptr;        // as this.
  Clock::time_point deadline{};
  std::shared_ptr<NcclSiblings> siblings;
  // Of a smaller group: the revoked communicator of the larger one, if this rank has it, and which
  // of its ranks are not in this group. If all have it, it is shrunk, else, and if that fails, all
  // join anew. It is aborted in any case.
  std::shared_ptr<NcclCommunicator> parent = {};
  std::vector<int> excluded = {};
  std::shared_ptr<RoundFence> fence = {};  // Ends the attempt, too, if there is one.
};

// Throws Error. Collective. `gloo` joins the same ranks already; null in a world of one.
std::unique_ptr<DeviceBackend> join_nccl(const NcclJoinOptions& options,
                                         std::unique_ptr<GlooBackend> gloo);

}  // namespace ddprun::worker_sdk
