#pragma once
// A worker's view of its job, and the collectives that join it to its peers.
//
//   auto group = ddprun::ProcessGroup::init();    // Blocks until every rank is here.
//   float loss = ...;
//   group.all_reduce(ddprun::buffer(&loss, 1), ddprun::ReduceOp::avg);

#include <chrono>
#include <functional>
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
  /// "auto": "shm" if all ranks share one host, "cpu" (shm inside the hosts, Gloo between them) if
  /// some do, else "gloo". "cpu" where all ranks share one host is "shm". "nccl": arrays are those
  /// of a GPU; see docs/nccl.md. The environment's DDPRUN_BACKEND overrides.
  std::string backend = "auto";
  /// The name of this host; empty: that of the machine. Ranks that give different names share no
  /// memory, so that one machine can play several. The environment's DDPRUN_HOST overrides.
  std::string host = {};
  int rank = -1;        ///< -1: from the environment.
  int world_size = -1;  ///< -1: from the environment.
  /// The GPU of this rank, counted among those that it sees; -1: its local rank, or 0 where it sees
  /// but one. On nccl only.
  int device = -1;
  int max_ctas = 0;  ///< How many of the GPU's blocks a collective of nccl may take; 0: no limit.
  /// On nccl: a failure keeps what shrink() can make a smaller group of, where NCCL can (2.28.7).
  bool may_shrink = false;
  std::chrono::milliseconds init_timeout = std::chrono::minutes(5);
  /// Deadline of one collective, unless the call names its own.
  std::chrono::milliseconds op_timeout = std::chrono::minutes(10);
};

/// Who is left, as far as the caller knows.
struct ShrinkOptions {
  /// Ranks that shall not be in the new group, such as where().peer of the Error.
  std::vector<int> lost = {};
  /// How long the other ranks are waited for, which is how far apart the survivors may call.
  std::chrono::milliseconds patience = std::chrono::seconds(10);
};

/// What a single call may ask for.
struct CallOptions {
  /// How long the operation may take from its start; asynchronous ones start when those before them
  /// are done. 0: the group's op_timeout.
  std::chrono::milliseconds timeout{0};
  /// On nccl: the operation begins when what was put into this stream before is done, and
  /// Work::wait() makes the stream, not the host, wait for its end, as do the blocking forms.
  /// Nothing: the stream of use_stream(), else the host waits, and the operation begins after what
  /// is in CUDA's default stream. Elsewhere without a meaning.
  std::optional<Stream> stream = {};
  /// The arrays are the host's on nccl, too: they travel over Gloo.
  bool on_host = false;
};

/// An operation under way. Move-only; destroying it without wait() waits, and drops the error; one
/// in a stream (CallOptions::stream) goes on. One that was moved from, or made by Work(), is empty:
/// it may be destroyed or assigned to, and every other call throws Error(bad_argument).
class [[nodiscard]] Work {
 public:
  Work() = default;
  explicit Work(std::shared_ptr<struct WorkState> state);
  Work(Work&&) noexcept;
  Work& operator=(Work&&) noexcept;
  ~Work();

  void wait();         ///< Returns when the result may be read. Throws Error.
  void synchronize();  ///< As wait(), but the host waits, whatever CallOptions::stream says.
  bool done() const;   ///< True once wait() would not block.
  /// As wait(), but false if the operation is not done within `limit`; it goes on then.
  bool wait_for(std::chrono::milliseconds limit);
  /// What wait() would throw; nothing before done(), or if all went well.
  std::optional<Error> error() const;
  /// How long the operation itself took, from its start to its end; 0 before done().
  std::chrono::nanoseconds duration() const;
  /// When it began, which is when those before it had ended; the epoch before done().
  std::chrono::steady_clock::time_point started() const;

 private:
  friend struct worker_sdk::GroupInside;
  struct WorkState& inside() const;  // Throws if this is empty.
  std::shared_ptr<struct WorkState> state_;
};

/// All ranks of a job. Movable; one that was moved from may be destroyed or assigned to, and every
/// other call but abort() throws Error(bad_argument). Collectives must be issued in the same order
/// with the same arguments on every rank; mismatched ones are reported as `mismatch` where the
/// backend can see it, else they time out. One thread at a time may call a group; a second one, and
/// a forked child, get Error(bad_argument). Asynchronous operations are carried out in the order of
/// their calls by a thread of the group.
class ProcessGroup {
 public:
  /// Joins the job: connects to the store, agrees on the backend, connects to the peers. May be
  /// called again when the group of the call before has ended, on all ranks equally often.
  static ProcessGroup init(const InitOptions& options = {});

  ProcessGroup(ProcessGroup&&) noexcept;
  ProcessGroup& operator=(ProcessGroup&&) noexcept;
  /// The last handle of a group finishes what is queued, within op_timeout, and leaves the job. In
  /// a forked child it does nothing.
  ~ProcessGroup();

  /// Another handle of this group, as DistributedDataParallel and others keep one: they may outlive
  /// the caller's, which may be moved. Handles share one order of calls, and one thread at a time.
  ProcessGroup share() const;

  const Identity& identity() const;
  int rank() const { return identity().rank; }
  int world_size() const { return identity().world_size; }
  int local_rank() const { return identity().local_rank; }
  int restart_count() const { return identity().restart_count; }
  const std::string& backend() const;  ///< "shm", "gloo", "cpu", "nccl" or "self".
  int device() const;  ///< On nccl: this rank's GPU, among those it sees. Elsewhere -1.
  const std::string& host_of(int rank) const;  ///< The host name that the rank gave.

  /// Tells the agent what this worker is about to do between collectives ("evaluate", "save";
  /// empty: nothing special), so that it can tell a long phase from a worker that is stuck. Does
  /// nothing under another launcher. Names are cut after 23 characters; 16 are told apart.
  void set_phase(std::string_view name);

  /// The job's store, without a prefix. World of one: a store of this process.
  Store& store();

  /// Replaces `inout` on every rank by the reduction over all ranks. All ranks get the same bits,
  /// in every run: sources are taken in the order of ranks (on "cpu": inside each host first). f16
  /// and bf16 are computed in f32 and rounded at the end (on "cpu": of each of the two steps).
  void all_reduce(Buffer inout, ReduceOp op = ReduceOp::sum, const CallOptions& options = {});

  /// `in` holds a part of out.count elements for each rank; `out` receives the reduction of this
  /// rank's parts. It may be that part of `in`.
  void reduce_scatter(Buffer in, Buffer out, ReduceOp op = ReduceOp::sum,
                      const CallOptions& options = {});

  void broadcast(Buffer inout, int root, const CallOptions& options = {});

  /// `out` holds world_size * in.count elements and receives the ranks' inputs in rank order. `in`
  /// may be this rank's part of it.
  void all_gather(Buffer in, Buffer out, const CallOptions& options = {});

  /// Both hold a part for each rank: part r of `in` goes to rank r, part r of `out` comes from it.
  /// They may be the same array.
  void all_to_all(Buffer in, Buffer out, const CallOptions& options = {});

  /// As all_gather, for the root alone; the others' `out` is not looked at.
  void gather(Buffer in, Buffer out, int root, const CallOptions& options = {});

  /// Part r of the root's `in` becomes rank r's `out`; the others' `in` is not looked at. The
  /// root's `out` may be its part of `in`.
  void scatter(Buffer in, Buffer out, int root, const CallOptions& options = {});

  /// Blocking, matched in order of the calls between each pair of ranks.
  void send(Buffer in, int destination, const CallOptions& options = {});
  void recv(Buffer out, int source, const CallOptions& options = {});

  /// The same, carried out behind the calls before them by a thread of the group; arrays belong to
  /// the operation until it is done. A message waits for its partner, and what is called after it
  /// waits for the message.
  Work all_reduce_async(Buffer inout, ReduceOp op = ReduceOp::sum, const CallOptions& options = {});
  Work reduce_scatter_async(Buffer in, Buffer out, ReduceOp op = ReduceOp::sum,
                            const CallOptions& options = {});
  Work broadcast_async(Buffer inout, int root, const CallOptions& options = {});
  Work all_gather_async(Buffer in, Buffer out, const CallOptions& options = {});
  Work all_to_all_async(Buffer in, Buffer out, const CallOptions& options = {});
  Work gather_async(Buffer in, Buffer out, int root, const CallOptions& options = {});
  Work scatter_async(Buffer in, Buffer out, int root, const CallOptions& options = {});
  Work send_async(Buffer in, int destination, const CallOptions& options = {});
  Work recv_async(Buffer out, int source, const CallOptions& options = {});

  /// Returns when all ranks have called it. On a time-out the error names the ranks that have not.
  void barrier(const CallOptions& options = {});

  /// A group of those ranks that give the same color, which must not be negative; nothing for a
  /// rank whose color is. Ranks are ordered by key, then by their rank here. Collective; joins
  /// within the init_timeout. Errors of the new group name ranks by both groups. It needs the store
  /// of the job, but not this group.
  std::optional<ProcessGroup> split(int color, int key = 0);

  /// After a failure, or instead of one: a group of the ranks that call it, in their order, but
  /// those that any of them names as lost. This group is aborted. Ranks that do not call within the
  /// patience are excluded; if they call later they get `aborted`. If a rank dies during the call,
  /// the rest retry without it, three attempts in all. Each attempt joins within half of the
  /// init_timeout. Needs the store of the job, so not where a lost rank hosted it, and a launcher
  /// that lets the survivors live: ddprun and torchrun end all workers when one fails. Errors of
  /// the new group name ranks by both groups. Groups that were split off this one are not touched;
  /// of nccl, they fail with this one.
  ProcessGroup shrink(const ShrinkOptions& options = {});

  /// On nccl: the stream of all calls that name none, such as those of DistributedDataParallel;
  /// nothing: the host waits for each. Elsewhere without a meaning.
  void use_stream(std::optional<Stream> stream);

  /// Copies `bytes` between arrays of this backend and of the host, in any direction. On nccl in
  /// the order of the stream of use_stream(); without one, or from or to the host, it is done on
  /// return. Without a stream it throws `timed_out` after op_timeout: some kernel in CUDA's default
  /// stream does not end.
  void copy(void* to, const void* from, std::size_t bytes);
  void zero(void* to, std::size_t bytes);  ///< As copy(), of zeros.

  /// Memory for collectives, of the GPU on nccl; on the shm and cpu backends, memory shared with
  /// the ranks of the same host that all_reduce works on in place, without copies. Every rank must
  /// allocate the same sizes in the same order. Freed with the last shared_ptr, which may outlive
  /// the group.
  std::shared_ptr<void> allocate(std::size_t bytes);

  /// Makes every pending and later operation of this rank fail with `aborted`. May be called from
  /// any thread and never blocks. Peers notice by their deadline or when this process ends. Does
  /// nothing if this was moved from.
  void abort() noexcept;

 private:
  friend struct worker_sdk::GroupInside;
  struct Impl;
  explicit ProcessGroup(std::unique_ptr<Impl> impl);
  explicit ProcessGroup(std::shared_ptr<Impl> impl);
  Impl& inside() const;                       // Throws if this was moved from.
  Impl& inside(const char* operation) const;  // Throws in a forked child, too.
  std::shared_ptr<Impl> impl_;
};

}  // namespace ddprun
