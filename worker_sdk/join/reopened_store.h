#pragma once
// A group's store once more, for the explanation of a failure: the group's own connection may be in
// the middle of a call. Used by join.cc.

#include <functional>
#include <memory>

#include "ddprun/store.h"
#include "worker_sdk/join/environment.h"

namespace ddprun::worker_sdk {

// Where the program has the store, that is `given`, which serves several threads. The function may
// throw Error.
std::function<std::shared_ptr<Store>()> reopening(const Rendezvous& at,
                                                  std::shared_ptr<Store> given);

}  // namespace ddprun::worker_sdk
