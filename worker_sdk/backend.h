#pragma once
// The seam between ProcessGroup and the ways to move bytes between ranks: shm, gloo, cpu, self.
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
  // Of arrays with a part of call.what.count elements for each rank, `in` or `out` may be this
  // rank's part of the other one; all_to_all may have the same for both.
  virtual void reduce_scatter(const Call& call, Buffer in, Buffer out) = 0;
  virtual void all_gather(const Call& call, Buffer in, Buffer out) = 0;
  virtual void all_to_all(const Call& call, Buffer in, Buffer out) = 0;
  virtual void gather(const Call& call, Buffer in, Buffer out) = 0;   // `out`: the root's alone.
  virtual void scatter(const Call& call, Buffer in, Buffer out) = 0;  // `in`: the root's alone.
  virtual void send(const Call& call, Buffer in) = 0;                 // To call.what.rank.
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
