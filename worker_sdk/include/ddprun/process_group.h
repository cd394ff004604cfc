#pragma once
// A worker's view of its job, and the collectives that connect it with its peers.
//
//   auto group = ddprun::ProcessGroup::init();    // Blocks until every rank has called it.
//   float loss = ...;
//   group.all_reduce(ddprun::buffer(&loss, 1), ddprun::ReduceOp::avg);

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ddprun/error.h"
#include "ddprun/store.h"
#include "ddprun/types.h"

namespace ddprun {

namespace worker_sdk {
struct GroupInside;
}

/// A worker's place in its job, read from the environment that ddprun and torchrun set: RANK,
/// WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, GROUP_RANK, TORCHELASTIC_RESTART_COUNT,
/// TORCHELASTIC_RUN_ID.
struct Identity {
  int rank = 0;  ///< 0 .. world_size - 1, unique in the job.
  int world_size = 1;
  /// 0 .. local_world_size - 1, unique on this node. In an elastic::Job it stays with the process,
  /// and so may be larger than that once other workers have gone.
  int local_rank = 0;
  int local_world_size = 1;
  int group_rank = 0;     ///< The number of this node.
  int restart_count = 0;  ///< Restarts of the job's workers so far; equal on all ranks.
  std::string run_id = "none";
};

/// Options of the backend nccl; other backends ignore them.
struct NcclOptions {
  /// The GPU of this rank, as an index into its visible GPUs. -1: the local rank, or 0 if only one
  /// GPU is visible.
  int device = -1;
  int max_ctas = 0;         ///< GPU blocks that a collective may use; 0: no limit.
  bool may_shrink = false;  ///< shrink() keeps NCCL's communicator (NCCL 2.28.7 or later).
};

struct InitOptions {
  /// "env://" reads MASTER_ADDR and MASTER_PORT; "tcp://host:port" and "file:///path" need rank and
  /// world_size below, unless RANK and WORLD_SIZE are set. Without these two, ranks that srun,
  /// mpirun, mpiexec or flux run started meet by its variables (docs/environment.md, "Ranks that a
  /// scheduler starts itself"); what none of them started is a world of one.
  std::string init_method = "env://";
  /// "auto": "shm" if all ranks share one host, "cpu" (shm within hosts, Gloo between hosts) if
  /// only some do, else "gloo". "cpu" means "shm" if all ranks share one host. "nccl": arrays are
  /// in GPU memory; see docs/nccl.md. The variable DDPRUN_BACKEND overrides this.
  std::string backend = "auto";
  /// The name of this host; empty: the machine's. Ranks with different names do not share memory,
  /// so that one machine can act as several hosts. The variable DDPRUN_HOST overrides this.
  std::string host = {};
  int rank = -1;        ///< -1: from the environment.
  int world_size = -1;  ///< -1: from the environment.
  NcclOptions nccl = {};
  /// After it a rank waits up to 2 s for rank 0, if that has joined, to name the missing ranks.
  std::chrono::milliseconds init_timeout = std::chrono::minutes(5);
  /// Time limit of one collective, unless the call has its own. On gloo, cpu and nccl the error of
  /// a time-out may be up to 3 s later: the ranks find the missing ones through the store.
  std::chrono::milliseconds op_timeout = std::chrono::minutes(10);
};

/// Options of ProcessGroup::create().
struct CreateOptions {
  int rank = 0;  ///< Among the ranks of the group, 0 .. world_size - 1.
  int world_size = 1;
  /// The prefix of the group's keys, never used before in the store.
  std::string prefix = {};
  /// For each rank of the group, its rank in the job. Empty: the group is the whole job.
  std::vector<int> job_ranks = {};
  std::string backend = "auto";  ///< As InitOptions::backend.
  std::string host = {};         ///< As InitOptions::host.
  /// The numeric address at which the other hosts reach this one; empty: the address from which
  /// this host reaches MASTER_ADDR, or else the other hosts.
  std::string address = {};
  NcclOptions nccl = {};
  std::chrono::milliseconds init_timeout = std::chrono::minutes(5);
  std::chrono::milliseconds op_timeout = std::chrono::minutes(10);
};

/// Options of shrink().
struct ShrinkOptions {
  /// Ranks to exclude from the new group, such as where().peer of the Error.
  std::vector<int> lost = {};
  /// How long a call waits for the other ranks, and so the largest delay between their calls.
  std::chrono::milliseconds patience = std::chrono::seconds(10);
};

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

/// The ranks of a job, or some of them. Movable; a moved-from group may be destroyed or assigned
/// to, and every other call except abort() throws Error(bad_argument). Every rank must issue the
/// same collectives in the same order with matching arguments. A backend that can detect a
/// difference reports `mismatch`; otherwise the operations time out. Only one thread at a time may
/// call a group; calls of a second thread and of a forked child throw Error(bad_argument). A thread
/// of the group runs asynchronous operations in the order of their calls.
class ProcessGroup {
 public:
  /// Joins the job: connects to the store, agrees with the other ranks on the backend, connects to
  /// the peers. May be called again after the previous group has ended, equally often on all ranks.
  static ProcessGroup init(const InitOptions& options = {});

  /// Joins the ranks of `options`, all of which call it, through a store that the program provides.
  /// The group keeps the store and calls it from one thread at a time, without waiting in it:
  /// check(), get() of a key that exists, set(), add().
  static ProcessGroup create(std::shared_ptr<Store> store, const CreateOptions& options);

  ProcessGroup(ProcessGroup&&) noexcept;
  ProcessGroup& operator=(ProcessGroup&&) noexcept;
  /// The destructor of a group's last handle completes queued operations, within op_timeout, and
  /// leaves the job. In a forked child it does nothing.
  ~ProcessGroup();

  /// Another handle of this group, which may outlive this one. DistributedDataParallel and other
  /// classes keep one, so the caller may move or destroy its own. All handles share one order of
  /// calls and the limit of one calling thread at a time.
  ProcessGroup share() const;

  const Identity& identity() const;
  int rank() const { return identity().rank; }
  int world_size() const { return identity().world_size; }
  int local_rank() const { return identity().local_rank; }
  int restart_count() const { return identity().restart_count; }
  const std::string& backend() const;  ///< "shm", "gloo", "cpu", "nccl" or "self".
  int device() const;  ///< On nccl: this rank's GPU among its visible GPUs; else -1.
  const std::string& host_of(int rank) const;  ///< The rank's host name (InitOptions::host).

  /// Reports to the agent the name of the phase between collectives that begins now ("evaluate",
  /// "save"; empty: none), so that the agent can distinguish a long phase from a stuck worker. No
  /// effect under another launcher. Names are cut after 23 characters; 16 names are distinguished.
  /// The phase "checkpoint", on all ranks, marks for the ledger that the program saves its state:
  /// when the next phase begins, everything computed before can no longer be lost.
  void set_phase(std::string_view name);

  /// The job's store, without a prefix. In a world of one: a store within this process.
  Store& store();

  /// Replaces `inout` on every rank by the reduction over all ranks. The result is bit-identical on
  /// all ranks and in every run: inputs are combined in rank order (on "cpu": first within each
  /// host). f16 and bf16 are reduced in f32 and rounded at the end (on "cpu": after each of the two
  /// steps).
  void all_reduce(Buffer inout, ReduceOp op = ReduceOp::sum, const CallOptions& options = {});

  /// Like all_reduce, but only the root receives, in `out`, which may be its `in`; `out` of the
  /// other ranks is ignored.
  void reduce(Buffer in, Buffer out, int root, ReduceOp op = ReduceOp::sum,
              const CallOptions& options = {});

  /// `in` holds a part of out.count elements for each rank; `out` receives the reduction over all
  /// ranks of this rank's part. `out` may be that part of `in`. Parts in separate arrays may have
  /// different sizes; all ranks have the same counts.
  void reduce_scatter(const PartsBuffer& in, Buffer out, ReduceOp op = ReduceOp::sum,
                      const CallOptions& options = {});

  void broadcast(Buffer inout, int root, const CallOptions& options = {});

  /// `out` holds world_size * in.count elements and receives the ranks' inputs in rank order. `in`
  /// may be this rank's part of `out`. Parts in separate arrays may have different sizes; all ranks
  /// have the same counts.
  void all_gather(Buffer in, const PartsBuffer& out, const CallOptions& options = {});

  /// `in` and `out` hold a part for each rank: part r of `in` is sent to rank r, part r of `out`
  /// received from it. `in` and `out` may be the same array. Either all ranks pass parts in
  /// separate arrays, in `in` and in `out`, or none does; such parts may have different sizes, and
  /// must not overlap.
  void all_to_all(const PartsBuffer& in, const PartsBuffer& out, const CallOptions& options = {});

  /// Like all_gather, but only the root receives; `out` of the other ranks is ignored.
  void gather(Buffer in, const PartsBuffer& out, int root, const CallOptions& options = {});

  /// Copies part r of the root's `in` to `out` of rank r; `in` of the other ranks is ignored. The
  /// root's `out` may be its part of `in`.
  void scatter(const PartsBuffer& in, Buffer out, int root, const CallOptions& options = {});

  /// Blocking. Calls between a pair of ranks match in their order, those with a tag
  /// (CallOptions::tag) among those with the same one. After an error other than bad_argument no
  /// message of that tag can follow between the two ranks: later calls throw `aborted`.
  void send(Buffer in, int destination, const CallOptions& options = {});
  void recv(Buffer out, int source, const CallOptions& options = {});

  /// The same operations, asynchronous: a thread of the group runs them after all earlier calls.
  /// The caller must not use the arrays before the operation is done. A send waits for its recv and
  /// a recv for its send; later operations wait for both.
  Work all_reduce_async(Buffer inout, ReduceOp op = ReduceOp::sum, const CallOptions& options = {});
  Work reduce_async(Buffer in, Buffer out, int root, ReduceOp op = ReduceOp::sum,
                    const CallOptions& options = {});
  Work reduce_scatter_async(const PartsBuffer& in, Buffer out, ReduceOp op = ReduceOp::sum,
                            const CallOptions& options = {});
  Work broadcast_async(Buffer inout, int root, const CallOptions& options = {});
  Work all_gather_async(Buffer in, const PartsBuffer& out, const CallOptions& options = {});
  Work all_to_all_async(const PartsBuffer& in, const PartsBuffer& out,
                        const CallOptions& options = {});
  Work gather_async(Buffer in, const PartsBuffer& out, int root, const CallOptions& options = {});
  Work scatter_async(const PartsBuffer& in, Buffer out, int root, const CallOptions& options = {});
  Work send_async(Buffer in, int destination, const CallOptions& options = {});
  Work recv_async(Buffer out, int source, const CallOptions& options = {});
  Work barrier_async(const CallOptions& options = {});

  /// Returns when all ranks have called it. The error of a time-out names the missing ranks. A rank
  /// that calls this, or another collective, when the others have given up throws, too, unless they
  /// had done their part before: a broadcast may have arrived already.
  void barrier(const CallOptions& options = {});

  /// A group of the ranks that pass the same color; empty for a rank whose color is negative. The
  /// new ranks are ordered by key, then by the rank in this group. Collective; joins within
  /// init_timeout. Errors of the new group give ranks in both groups. The new group needs the job's
  /// store, but not this group.
  std::optional<ProcessGroup> split(int color, int key = 0);

  /// A group of the ranks that call shrink(), in their order, without those that any of them lists
  /// as lost; for use after a failure or to avoid one. Aborts this group. Ranks that do not call
  /// within `patience` are excluded; if they call later they get `aborted`. If a rank dies during
  /// the call, the rest retry without it, three attempts in all. Each attempt joins within half of
  /// init_timeout. Requires the job's store, so it fails if a lost rank hosted the store, and a
  /// launcher that keeps survivors running: ddprun and torchrun end all workers when one fails.
  /// Errors of the new group give ranks in both groups. Groups split from this one are unaffected,
  /// except on nccl, where they fail together with this one.
  ProcessGroup shrink(const ShrinkOptions& options = {});

  /// On nccl: the stream of all calls without one, such as those of DistributedDataParallel. Empty:
  /// the host waits for each call. Ignored by other backends.
  void use_stream(std::optional<Stream> stream);

  /// Copies `bytes` between arrays of this backend and of the host, in any direction. On nccl the
  /// copy takes its place in the stream of use_stream(); without a stream, or from or to the host,
  /// it is complete on return. Without a stream it throws `timed_out` if a kernel in CUDA's default
  /// stream does not end within op_timeout.
  void copy(void* to, const void* from, std::size_t bytes);
  void zero(void* to, std::size_t bytes);  ///< Like copy(), from zeros.

  /// Memory for collectives: GPU memory on nccl; on shm and cpu, memory shared with the ranks of
  /// the same host, on which all_reduce works in place without copies. Every rank must allocate the
  /// same sizes in the same order. The last shared_ptr frees the memory; it may outlive the group.
  std::shared_ptr<void> allocate(std::size_t bytes);

  /// Makes every pending and later operation of this rank fail with `aborted`. May be called from
  /// any thread and never blocks. Peers detect it at their deadline or when this process ends. Does
  /// nothing on a moved-from object.
  void abort() noexcept;

  /// Waits for queued operations, at most `limit`, and aborts the rest; returns false if any had
  /// not ended. Every later operation throws `aborted`. May be called from any thread.
  bool shutdown(std::chrono::milliseconds limit);

  /// A non-blocking eventfd that becomes readable when an asynchronous operation on the host has
  /// ended since its 8 bytes were last read. Stays open as long as this group.
  int completion_descriptor();

 private:
  friend struct worker_sdk::GroupInside;
  struct Impl;
  explicit ProcessGroup(std::unique_ptr<Impl> impl);
  explicit ProcessGroup(std::shared_ptr<Impl> impl);
  Impl& inside() const;                       // Throws if moved from.
  Impl& inside(const char* operation) const;  // Also throws in a forked child.
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun
