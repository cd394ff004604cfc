#pragma once
// The store of a job whose ranks were given no port: rank 0 hosts it at the first free one of the
// job's ports, and the others try these in turn until one has a store with the job's key. Another
// job, or a service, may have any of the ports. Used by join.cc.

#include <cstdint>
#include <memory>
#include <string>

#include "ddprun/store.h"
#include "worker_sdk/base/round_fence.h"
#include "worker_sdk/join/environment.h"
#include "worker_sdk/store/store_host.h"

namespace ddprun::worker_sdk {

struct StoreSearch {
  const Rendezvous& at;  // Of the kind kTcp, with is_searched.
  bool hosts = false;    // This rank is rank 0, and no other process hosts the store.
  PortRange ports = {};  // Of the plan.
  std::string prefix;    // Of the group's keys; groups of other lives have others.
  std::chrono::milliseconds reply_timeout{0};
  Clock::time_point deadline{};
  std::shared_ptr<RoundFence> fence = nullptr;
};

struct FoundStore {
  std::shared_ptr<StoreHost> host;  // If this rank hosts it.
  std::shared_ptr<Store> store;
  std::uint16_t port = 0;
};

// Throws Error, naming host and ports: system if none is free, unreachable if the others do not
// find the store before the deadline.
FoundStore find_store(const StoreSearch& search);

}  // namespace ddprun::worker_sdk
