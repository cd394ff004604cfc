#pragma once
// The seam between ProcessGroup and the ways to move bytes between ranks. A HostBackend has carried
// out an operation when it returns (shm, gloo, cpu, self); a DeviceBackend also puts operations
// into a device's stream, where they are pending (nccl).
//
// call.what describes the operation. These are its arrays:
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

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <string>

#include "common/assert.h"
#include "ddprun/error.h"
#include "ddprun/types.h"
#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {

// Arrays as bytes, for backends of the host.
inline std::byte* bytes_of(const Buffer& buffer) { return static_cast<std::byte*>(buffer.data); }

inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

// The ranges may overlap.
inline void move_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

// The list of operations, for backends that have a function for each: they declare those functions
// as `Verb`, privately, and make Verbs a friend.

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

// The interface of a device apart from collectives: points in its streams, operations in progress
// in them, copies and kernels. The sync timer, comm hooks and buckets use it.

// A point in one of a device's streams, and when the stream reached it.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
  virtual bool passed() const = 0;
  // The time from this mark to `later`, which may be in another stream. Both must have passed.
  virtual std::chrono::nanoseconds until(const DeviceMark& later) const = 0;
};

// An operation that a device carries out while the host goes on.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual bool done() noexcept = 0;        // True also if it has failed.
  virtual void follow(Stream stream) = 0;  // The stream waits for it; throws if it has failed.
  virtual bool wait_until(Clock::time_point limit) = 0;  // The host waits. False: not done by then.
  virtual std::optional<Error> error() = 0;
  virtual std::chrono::nanoseconds duration() noexcept = 0;  // 0 before done().
  virtual Clock::time_point started() noexcept = 0;
  virtual const DeviceMark& begin_mark() const = 0;
  virtual const DeviceMark& end_mark() const = 0;
};

// The part of a device that puts marks into its streams.
class StreamMarks {
 public:
  virtual ~StreamMarks() = default;
  // Null while the stream is captured.
  virtual std::shared_ptr<const DeviceMark> mark(Stream stream) = 0;
};

class GpuKernels;

class DeviceSide : public StreamMarks {
 public:
  virtual int index() const noexcept = 0;  // Of the device, among those that the process sees.
  // Is what is put into the stream captured for a graph, instead of carried out?
  virtual bool captured(Stream stream) = 0;
  // Between arrays of the device and of the host, in the stream's order; done, if there is none,
  // or thrown as timed_out.
  virtual void copy(void* to, const void* from, std::size_t bytes, std::optional<Stream> stream,
                    std::chrono::milliseconds timeout) = 0;
  virtual void zero(void* to, std::size_t bytes, std::optional<Stream> stream,
                    std::chrono::milliseconds timeout) = 0;
  // ddprun's own kernels, on this device. Throws Error(unsupported) with the reason if there are
  // none.
  virtual const GpuKernels& kernels() = 0;
  // Without a stream, the host waits for the work in the default one, or throws timed_out.
  virtual void settle(const std::string& what, std::optional<Stream> stream,
                      std::chrono::milliseconds timeout) = 0;
};

class DeviceBackend;

class HostBackend {
 public:
  virtual ~HostBackend() = default;

  virtual const char* name() const noexcept = 0;
  // Done when it returns. Any kind but kAllocate.
  virtual void carry_out(const Call& call, const Arrays& arrays) = 0;
  // Whether it supports Arrays::combine.
  virtual bool combines() const noexcept { return false; }
  // Zeroed memory, aligned to kAlignment at least; of the device, if there is one. Collective.
  virtual std::shared_ptr<void> allocate(const Call& call, std::size_t bytes) = 0;
  // CPU time so far of the backend's own threads, without the threads that call it.
  virtual std::chrono::nanoseconds cpu_time() const { return {}; }
  // Makes the current call and all later ones throw `aborted`. From any thread, also during a call,
  // without blocking.
  virtual void abort() noexcept = 0;
  // Like abort(), but the whole group ends, so that no peer needs an explanation.
  virtual void dissolve() noexcept { abort(); }
  // Like abort(), but for a peer that the agent reports as lost: the current call, unless it ends
  // at once, and all later ones throw `peer_lost`. (For operations in streams, nccl queries the
  // agent's notice itself, with its other checks.)
  virtual void lose(int /*rank*/, const std::string& /*why*/) noexcept {}

  // This backend, if it has a device.
  virtual DeviceBackend* device() noexcept { return nullptr; }
};

class NcclCommunicator;

// carry_out() of such a backend is for barriers and for operations on arrays of the host.
class DeviceBackend : public HostBackend, public DeviceSide {
 public:
  DeviceBackend* device() noexcept final { return this; }
  // Puts an operation on arrays of the device behind the work in `stream`, and behind earlier
  // operations. Any kind but kBarrier and kAllocate.
  virtual std::shared_ptr<Pending> enqueue(const Call& call, const Arrays& arrays,
                                           Stream stream) = 0;
  // Why it cannot carry out this operation on its arrays; empty: it can.
  virtual std::string refusal(const Signature& what, const Arrays& arrays) const = 0;
  // Aborts; afterwards only the destructor may be called. Returns what a smaller group may be made
  // of; null: nothing.
  virtual std::shared_ptr<NcclCommunicator> retire() = 0;
};

constexpr std::size_t kAlignment = 64;

// The memory that allocate() returns if no memory is shared.
std::shared_ptr<void> allocate_plain(std::size_t bytes);

// The backend of a world of one: every collective is its own result.
class SelfBackend : public HostBackend {
 public:
  explicit SelfBackend(std::shared_ptr<const Roster> roster) : roster_(std::move(roster)) {}

  const char* name() const noexcept override { return "self"; }
  void carry_out(const Call& call, const Arrays& arrays) override;
  std::shared_ptr<void> allocate(const Call& call, std::size_t bytes) override;
  void abort() noexcept override { aborted_.store(true); }

 private:
  void refuse_if_aborted(const Call& call) const;

  std::shared_ptr<const Roster> roster_;
  std::atomic<bool> aborted_{false};
};

}  // namespace ddprun::worker_sdk
