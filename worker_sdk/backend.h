#pragma once
// The seam between ProcessGroup and the ways to move bytes between ranks: shm, gloo, self.
//
// ProcessGroup has checked all arguments, numbers the calls and makes them one at a time, though
// not always from the same thread. A backend throws Error; it is not called again after it has
// thrown.

#include <cstddef>
#include <memory>

#include "ddprun/types.h"
#include "worker_sdk/operation.h"

namespace ddprun::worker_sdk {

class Backend {
 public:
  virtual ~Backend() = default;

  virtual const char* name() const noexcept = 0;
  virtual void all_reduce(const Call& call, Buffer inout) = 0;  // The reduction is call.what.op.
  virtual void broadcast(const Call& call, Buffer inout) = 0;   // The root is call.what.rank.
  virtual void all_gather(const Call& call, Buffer in, Buffer out) = 0;
  virtual void send(const Call& call, Buffer in) = 0;  // To call.what.rank.
  virtual void recv(const Call& call, Buffer out) = 0;
  virtual void barrier(const Call& call) = 0;
  // Zeroed memory, aligned to kAlignment at least.
  virtual std::shared_ptr<void> allocate(const Call& call, std::size_t bytes) = 0;

  // From any thread, while a call may be under way, without blocking: that call and all later ones
  // throw `aborted`.
  virtual void abort() noexcept = 0;
};

constexpr std::size_t kAlignment = 64;

// What allocate() returns where no memory is shared.
std::shared_ptr<void> allocate_plain(std::size_t bytes);

}  // namespace ddprun::worker_sdk
