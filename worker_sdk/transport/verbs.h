#pragma once
// The list of operations, for backends that have a function for each: they declare those functions
// as `Verb`, privately, and make Verbs a friend.

#include "common/assert.h"
#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {

using Verb = void(const Call& call, const Arrays& arrays);

struct Verbs {
  // The function of `backend` that call.what names.
  template <class Backend>
  static void carry_out(Backend& backend, const Call& call, const Arrays& arrays) {
    DDPRUN_ASSERT(call.what.kind != OpKind::kAllocate);
    switch (call.what.kind) {
      case OpKind::kAllReduce: return backend.all_reduce(call, arrays);
      case OpKind::kBroadcast: return backend.broadcast(call, arrays);
      case OpKind::kAllGather: return backend.all_gather(call, arrays);
      case OpKind::kSend: return backend.send(call, arrays);
      case OpKind::kRecv: return backend.recv(call, arrays);
      case OpKind::kBarrier: return backend.barrier(call, arrays);
      case OpKind::kReduceScatter: return backend.reduce_scatter(call, arrays);
      case OpKind::kAllToAll: return backend.all_to_all(call, arrays);
      case OpKind::kGather: return backend.gather(call, arrays);
      case OpKind::kScatter: return backend.scatter(call, arrays);
      case OpKind::kReduce: return backend.reduce(call, arrays);
      case OpKind::kAllocate: break;  // Returns something, and so has a function of its own.
    }
  }
};

}  // namespace ddprun::worker_sdk
