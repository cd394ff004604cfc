#pragma once
// What the implementations of ddprun/c_api.h share: handles, and how exceptions become statuses.
// Used by c_api.cc and c_api_calls.cc.

#include <exception>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ddprun/c_api.h"
#include "ddprun/distributed_data_parallel.h"
#include "ddprun/distributed_sampler.h"
#include "ddprun/process_group.h"

struct ddprun_group {
  ddprun::ProcessGroup group;
};
struct ddprun_work {
  ddprun::Work work;
};
struct ddprun_ddp {
  ddprun::DistributedDataParallel ddp;
  std::size_t parameters = 0;
  std::optional<ddprun::DistributedDataParallel::NoSync> no_sync = {};
};
struct ddprun_sampler {
  ddprun::DistributedSampler sampler;
  std::vector<std::int64_t> indices = {};
};

namespace ddprun::worker_sdk {

// Of the exception under way; remembers what it says.
ddprun_status status_of_exception() noexcept;
// Throws Error(bad_argument) unless `ok`.
void require_argument(bool ok, const char* text);
Buffer buffer_of(const ddprun_buffer& buffer);
ReduceOp op_of(ddprun_op op);
CallOptions timeout_of(std::int64_t milliseconds);

template <class Handle>
Handle& live(Handle* handle) {
  require_argument(handle != nullptr, "the handle is null");
  return *handle;
}

template <class Body>
ddprun_status guarded(const Body& body) noexcept {
  try {
    body();
    return DDPRUN_OK;
  } catch (...) {
    return status_of_exception();
  }
}

}  // namespace ddprun::worker_sdk
