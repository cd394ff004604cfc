#pragma once
// Options of one operation of a process group, and the handle of one that runs asynchronously.

#include <chrono>
#include <memory>
#include <optional>

#include "ddprun/error.h"
#include "ddprun/types.h"

namespace ddprun {

namespace worker_sdk {
struct GroupInside;
}

/// Options of a single call.
struct CallOptions {
  /// Time limit of the operation from its start; an asynchronous operation starts when earlier ones
  /// have ended. 0: the group's op_timeout.
  std::chrono::milliseconds timeout{0};
  /// Of ReduceOp::premul_sum. Each rank has its own.
  double factor = 1;
  /// Of messages. At least 0: messages with the same source, destination and tag match in their
  /// order and do not wait for other operations of the group, and a receive with one tag may be
  /// issued before a send with another; the first message with a source, destination and tag
  /// connects the two ranks. Negative: all messages between two ranks match in their order. Ignored
  /// on nccl.
  int tag = -1;
  /// On nccl: the operation begins after all work enqueued earlier in this stream. Work::wait() and
  /// the blocking calls make the stream, not the host, wait for its end. Empty: the stream of
  /// use_stream(); without one, the host waits, and the operation begins after all work in CUDA's
  /// default stream. Ignored by other backends.
  std::optional<Stream> stream = {};
  /// On nccl: the arrays are in host memory and are sent over Gloo.
  bool on_host = false;
};

/// An asynchronous operation. Move-only. Its destructor waits for the operation and discards the
/// error; an operation in a stream (CallOptions::stream) continues instead. A moved-from or
/// default-constructed Work is empty: it may be destroyed or assigned to, and every other call
/// throws Error(bad_argument).
class [[nodiscard]] Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<struct WorkState> state);
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();

  void wait();         ///< Blocks until the result is available. Throws Error.
  void synchronize();  ///< Like wait(), but always blocks the host, even with a stream.
  bool done() const;   ///< True once wait() would not block.
  /// Like wait(), but returns false if the operation has not ended within `limit`; it continues.
  bool wait_for(std::chrono::milliseconds limit);
  /// The error that wait() would throw; empty before done() and on success.
  std::optional<Error> error() const;
  /// Duration of the operation from its start to its end; 0 before done().
  std::chrono::nanoseconds duration() const;
  /// Start of the operation, after the end of earlier ones; the epoch before done().
  std::chrono::steady_clock::time_point started() const;

 private:
  friend struct worker_sdk::GroupInside;
  struct WorkState& inside() const;  // Throws if this is empty.
  std::shared_ptr<struct WorkState> state_;
};

}  // namespace ddprun
