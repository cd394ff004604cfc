#pragma once
// A device as it is seen beside collectives: points in its streams, operations under way in them,
// copies and kernels. The sync timer, comm hooks and buckets use it.

#include <chrono>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

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

// Whatever can put marks into a device's streams.
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
  // ddprun's own, on this device. Throws Error(unsupported) that says why there are none.
  virtual const GpuKernels& kernels() = 0;
  // Without a stream the host waits for what is in the default one, or throws timed_out.
  virtual void settle(const std::string& what, std::optional<Stream> stream,
                      std::chrono::milliseconds timeout) = 0;
};

}  // namespace ddprun::worker_sdk
