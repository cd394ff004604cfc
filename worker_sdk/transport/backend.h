#pragma once
// The seam between ProcessGroup and the ways to move bytes between ranks. A HostBackend has carried
// out an operation when it returns (shm, gloo, cpu, self); a DeviceBackend also puts operations
// into a device's stream, where they are pending (nccl).
//
// What the operation is stands in call.what, and these are its arrays:
//
//   all_reduce, broadcast   `in` and `out` are the same array
//   reduce_scatter          `in` has a part of call.what.count elements for each rank, `out` is one
//   all_gather              `out` has the parts; `in` is one, and may be this rank's part of `out`,
//                           as `out` of a reduce_scatter may be of `in`
//   all_to_all              both have a part for each rank, and may be the same array
//   reduce                  `out` is the root's alone, and may be its `in`
//   gather, scatter         as all_gather; the array with the parts is the root's alone
//   send, recv              `in`, or `out`, alone
//   barrier                 none
//
// Parts may lie apart, and of all_gather, reduce_scatter and all_to_all be unequal
// (Signature::parts).
//
// ProcessGroup has checked all arguments, numbers the calls and makes them one at a time, though
// not always from the same thread. A backend throws Error; it is not called again after it has
// thrown.

#include <cstddef>
#include <memory>

#include "worker_sdk/base/operation.h"
#include "worker_sdk/transport/device_side.h"

namespace ddprun::worker_sdk {

class DeviceBackend;

class HostBackend {
 public:
  virtual ~HostBackend() = default;

  virtual const char* name() const noexcept = 0;
  // Done when it returns. Any kind but kAllocate.
  virtual void carry_out(const Call& call, const Arrays& arrays) = 0;
  // Whether it heeds Arrays::combine.
  virtual bool combines() const noexcept { return false; }
  // Zeroed memory, aligned to kAlignment at least; of the device, if there is one. Collective.
  virtual std::shared_ptr<void> allocate(const Call& call, std::size_t bytes) = 0;
  // That threads of its own have used so far, beside those that call it.
  virtual std::chrono::nanoseconds cpu_time() const { return {}; }
  // From any thread, while a call may be under way, without blocking: that call and all later ones
  // throw `aborted`.
  virtual void abort() noexcept = 0;
  // The same where the whole group ends, so that no peer needs an explanation.
  virtual void dissolve() noexcept { abort(); }
  // The same for a peer that is gone, as the agent says: that call, unless it ends at once, and all
  // later ones throw `peer_lost`. (Of what is in streams nccl asks for that word itself, with its
  // other looks.)
  virtual void lose(int /*rank*/, const std::string& /*why*/) noexcept {}

  // This one, if it has a device.
  virtual DeviceBackend* device() noexcept { return nullptr; }
};

class NcclCommunicator;

// Barriers, and operations on arrays of the host, are carry_out()'s: its part as a HostBackend.
class DeviceBackend : public HostBackend, public DeviceSide {
 public:
  DeviceBackend* device() noexcept final { return this; }
  // Puts an operation on arrays of the device behind what is in `stream`, and behind those before
  // it. Any kind but kBarrier and kAllocate.
  virtual std::shared_ptr<Pending> enqueue(const Call& call, const Arrays& arrays,
                                           Stream stream) = 0;
  // Why it cannot carry out this operation on its arrays; empty: it can.
  virtual std::string refusal(const Signature& what, const Arrays& arrays) const = 0;
  // Aborts; after it nothing is called but the destructor. What a smaller group may be made of;
  // null: that begins from nothing.
  virtual std::shared_ptr<NcclCommunicator> retire() = 0;
};

constexpr std::size_t kAlignment = 64;

// What allocate() returns where no memory is shared.
std::shared_ptr<void> allocate_plain(std::size_t bytes);

}  // namespace ddprun::worker_sdk
