#pragma once
// The seam between ProcessGroup and the ways to move bytes between ranks: shm, gloo, cpu, self,
// nccl.
//
// ProcessGroup has checked all arguments, numbers the calls and makes them one at a time, though
// not always from the same thread. A backend throws Error; it is not called again after it has
// thrown.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>

#include "ddprun/error.h"
#include "ddprun/types.h"
#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {

// A point in one of a device's streams, and when the stream came to it.
class DeviceMark {
 public:
  virtual ~DeviceMark() = default;
  virtual bool passed() const = 0;
  // Both have passed; also between streams.
  virtual std::chrono::nanoseconds until(const DeviceMark& later) const = 0;
};

// An operation that a device carries out while the host goes on.
class Pending {
 public:
  virtual ~Pending() = default;
  virtual bool done() noexcept = 0;        // Or failed.
  virtual void follow(Stream stream) = 0;  // The stream waits for it; throws if it has failed.
  virtual bool wait_until(Clock::time_point limit) = 0;  // The host waits. False: not done by then.
  virtual std::optional<Error> error() = 0;
  virtual std::chrono::nanoseconds duration() noexcept = 0;  // 0 before done().
  virtual Clock::time_point started() noexcept = 0;
  virtual const DeviceMark& begin_mark() const = 0;
  virtual const DeviceMark& end_mark() const = 0;
};

class GpuKernels;

// What a backend has besides if its arrays are a device's.
class DeviceSide {
 public:
  virtual ~DeviceSide() = default;
  virtual int index() const noexcept = 0;  // Of the device, among those that the process sees.
  // Is what is put into the stream captured for a graph, instead of carried out?
  virtual bool captured(Stream stream) = 0;
  // Null while the stream is captured.
  virtual std::shared_ptr<const DeviceMark> mark(Stream stream) = 0;
  // `enqueue` calls one operation of the backend, which puts it behind what is in `stream` and
  // behind those before it.
  virtual std::shared_ptr<Pending> launch(const Call& call, Stream stream,
                                          const std::function<void()>& enqueue) = 0;
  // Between arrays of the device and of the host, in the stream's order; done, if there is none,
  // or thrown as timed_out.
  virtual void copy(void* to, const void* from, std::size_t bytes, std::optional<Stream> stream,
                    std::chrono::milliseconds timeout) = 0;
  virtual void zero(void* to, std::size_t bytes, std::optional<Stream> stream,
                    std::chrono::milliseconds timeout) = 0;
  // ddprun's own, on this device. Throws Error(unsupported) that says why there are none.
  virtual const GpuKernels& kernels() = 0;
  // Without a stream the host waits for what is in the default one, or throws timed_out.
  virtual void settle(const std::string& what, std::optional<Stream> stream,
                      std::chrono::milliseconds timeout) = 0;
};

class NcclCommunicator;

class Backend {
 public:
  virtual ~Backend() = default;

  // Null: arrays are the host's, and each operation below is done when it returns.
  virtual DeviceSide* device() noexcept { return nullptr; }
  // The backend for arrays of the host.
  virtual Backend& host() noexcept { return *this; }
  // Throws if an operation has failed that nobody waited for.
  virtual void check(const Call&) {}

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

  // That threads of its own have used so far, beside those that call it.
  virtual std::chrono::nanoseconds cpu_time() const { return {}; }

  // From any thread, while a call may be under way, without blocking: that call and all later ones
  // throw `aborted`.
  virtual void abort() noexcept = 0;
  // The same for a peer that is gone, as the agent says: that call, unless it ends at once, and all
  // later ones throw `peer_lost`. (nccl asks for that word itself, with its other looks.)
  virtual void lose(int /*rank*/, const std::string& /*why*/) noexcept {}
  // After it nothing is called but the destructor. What a smaller group may be made of; null: that
  // begins from nothing.
  virtual std::shared_ptr<NcclCommunicator> retire() {
    abort();
    return nullptr;
  }
};

constexpr std::size_t kAlignment = 64;

// What allocate() returns where no memory is shared.
std::shared_ptr<void> allocate_plain(std::size_t bytes);

}  // namespace ddprun::worker_sdk
