#pragma once
// A worker's view of its job, and the collectives that join it to its peers.
//
//   auto group = ddprun::ProcessGroup::init();    // Blocks until every rank is here.
//   float loss = ...;
//   group.all_reduce(ddprun::buffer(&loss, 1), ddprun::ReduceOp::avg);

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "ddprun/error.h"
#include "ddprun/store.h"
#include "ddprun/types.h"

namespace ddprun {

/// Who this worker is. Filled from the environment that ddprun and torchrun set: RANK, WORLD_SIZE,
/// LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, TORCHELASTIC_RESTART_COUNT, TORCHELASTIC_RUN_ID.
struct Identity {
  int rank = 0;  ///< 0 .. world_size - 1, unique in the job.
  int world_size = 1;
  int local_rank = 0;  ///< 0 .. local_world_size - 1, unique on this node.
  int local_world_size = 1;
  int group_rank = 0;     ///< Which node this is.
  int restart_count = 0;  ///< How often the job's workers have been restarted; equal on all ranks.
  std::string run_id = "none";
};

struct InitOptions {
  /// "env://" reads MASTER_ADDR and MASTER_PORT; "tcp://host:port" and "file:///path" need rank and
  /// world_size below, unless RANK and WORLD_SIZE are set. Without a launcher (no RANK) and without
  /// another method, the job is a world of one.
  std::string init_method = "env://";
  /// "auto": "shm" if all ranks share one host, else "gloo". The environment's DDPRUN_BACKEND
  /// overrides.
  std::string backend = "auto";
  int rank = -1;        ///< -1: from the environment.
  int world_size = -1;  ///< -1: from the environment.
  std::chrono::milliseconds init_timeout = std::chrono::minutes(5);
  /// Deadline of one collective, unless the call names its own.
  std::chrono::milliseconds op_timeout = std::chrono::minutes(10);
};

/// An operation under way. Move-only; destroying it without wait() waits, and drops the error.
class [[nodiscard]] Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<struct WorkState> state);
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();

  void wait();                 ///< Returns when the result may be read. Throws Error.
  bool done() const noexcept;  ///< True once wait() would not block.
  /// How long the operation itself took, from its start to its end; 0 before done().
  std::chrono::nanoseconds duration() const noexcept;
  /// When it began, which is when those before it had ended; the epoch before done().
  std::chrono::steady_clock::time_point started() const noexcept;

 private:
  std::shared_ptr<struct WorkState> state_;
};

/// All ranks of a job. Movable. Collectives must be issued in the same order with the same
/// arguments on every rank; mismatched ones are reported as `mismatch` where the backend can see
/// it, else they time out. One thread at a time may call a group; asynchronous operations are
/// carried out in the order of their calls by a thread of the group.
class ProcessGroup {
 public:
  /// Joins the job: connects to the store, agrees on the backend, connects to the peers.
  static ProcessGroup init(const InitOptions& options = {});

  ProcessGroup(ProcessGroup&&) noexcept;
  ProcessGroup& operator=(ProcessGroup&&) noexcept;
  ~ProcessGroup();  ///< Finishes what is queued, within op_timeout.

  const Identity& identity() const noexcept;
  int rank() const noexcept { return identity().rank; }
  int world_size() const noexcept { return identity().world_size; }
  int local_rank() const noexcept { return identity().local_rank; }
  int restart_count() const noexcept { return identity().restart_count; }
  const std::string& backend() const noexcept;  ///< "shm", "gloo" or "self".
  const std::string& host_of(int rank) const;   ///< The host name that the rank gave.

  /// The job's store, without a prefix. World of one: a store of this process.
  Store& store();

  /// Replaces `inout` on every rank by the reduction over all ranks. All ranks get the same bits.
  void all_reduce(Buffer inout, ReduceOp op = ReduceOp::sum);
  Work all_reduce_async(Buffer inout, ReduceOp op = ReduceOp::sum);

  void broadcast(Buffer inout, int root);

  /// `out` holds world_size * in.count elements and receives the ranks' inputs in rank order.
  void all_gather(Buffer in, Buffer out);

  /// Blocking, matched in order of the calls between each pair of ranks.
  void send(Buffer in, int destination);
  void recv(Buffer out, int source);

  /// Returns when all ranks have called it. On a time-out the error names the ranks that have not.
  void barrier();

  /// Memory for collectives; on the shm backend, shared memory that all_reduce works on in place,
  /// without copies. Every rank must allocate the same sizes in the same order. Freed with the last
  /// shared_ptr, which may outlive the group.
  std::shared_ptr<void> allocate(std::size_t bytes);

  /// Makes every pending and later operation of this rank fail with `aborted`. May be called from
  /// any thread and never blocks. Peers notice by their deadline or when this process ends.
  void abort() noexcept;

 private:
  struct Impl;
  explicit ProcessGroup(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
