#pragma once
// From a group that is connected over Gloo to one that is connected over NCCL. Used by join.cc.
//
//   each rank loads NCCL, reports what it has -> rank 0 accepts, or objects and names the odd rank
//   the roots make fresh unique ids           -> every rank joins, within a part of the deadline
//   each rank reports whether it has joined   -> rank 0: go, or all again with new ids
//
// A stray connection to NCCL's bootstrap port can hang a join for ever; the last step exists for
// that.

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

// A second connection to a group's store, to explain a failure: the group's own connection may be
// in the middle of a call. Used by join.cc.

// If the program passes the store, that is `given`, which serves several threads. The function may
// throw Error.
std::function<std::shared_ptr<Store>()> reopening(const Rendezvous& at,
                                                  std::shared_ptr<Store> given);

struct NcclJoinOptions {
  std::shared_ptr<const Roster> roster;
  Identity identity;
  GpuRequest request;
  std::vector<std::string> domains;  // By rank: equal for ranks of one host. Empty: one rank alone.
  Store* keys = nullptr;             // The store with the group's prefix; null in a world of one,
  Meeting* meeting = nullptr;        // as this.
  Clock::time_point deadline{};
  std::shared_ptr<NcclSiblings> siblings;
  // For a smaller group: the revoked communicator of the larger one, if this rank has it, and the
  // ranks of the larger one that are not in this group. If all ranks have it, it is shrunk; if they
  // do not, or that fails, all join anew. It is aborted in any case.
  std::shared_ptr<NcclCommunicator> parent = {};
  std::vector<int> excluded = {};
  std::shared_ptr<RoundFence> fence = {};  // Ends the attempt, too, if there is one.
};

// Throws Error. Collective. `gloo` joins the same ranks already; null in a world of one.
std::unique_ptr<DeviceBackend> join_nccl(const NcclJoinOptions& options,
                                         std::unique_ptr<GlooBackend> gloo);

}  // namespace ddprun::worker_sdk
