// ProcessGroup: checks arguments, numbers the operations, runs them here or on the queue's thread,
// and remembers the first failure.

#include "ddprun/process_group.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <mutex>

#include "ddprun/crash_report.h"
#include "worker_sdk/join.h"
#include "worker_sdk/progress.h"
#include "worker_sdk/work_queue.h"

namespace ddprun {

using worker_sdk::Backend;
using worker_sdk::Call;
using worker_sdk::Clock;
using worker_sdk::OpKind;
using worker_sdk::Signature;

namespace {

worker_sdk::Variables process_variables() {
  worker_sdk::Variables variables;
  for (char** entry = ::environ; entry && *entry; ++entry) {
    const std::string_view text = *entry;
    const std::size_t equals = text.find('=');
    if (equals == std::string_view::npos) continue;
    variables.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return variables;
}

// A launcher reads what a crash leaves behind.
bool wants_crash_report() {
  const char* error_file = std::getenv("TORCHELASTIC_ERROR_FILE");
  const char* wish = std::getenv("DDPRUN_CRASH_REPORT");
  return error_file && *error_file && !(wish && std::string_view(wish) == "0");
}

}  // namespace

struct ProcessGroup::Impl {
  Impl(worker_sdk::Joined joined, std::chrono::milliseconds timeout, const std::string& page)
      : progress(page),
        identity(joined.identity),
        roster(std::move(joined.roster)),
        store_host(std::move(joined.store_host)),
        store(std::move(joined.store)),
        backend(std::move(joined.backend)),
        backend_name(backend->name()),
        op_timeout(timeout) {}

  ~Impl() {
    if (!queue.wait_idle(op_timeout)) backend->abort();
  }

  Call number(const Signature& what) {
    const bool between_two = what.kind == OpKind::kSend || what.kind == OpKind::kRecv;
    return {.what = what, .number = between_two ? ++messages : ++collectives};
  }

  // Wrong arguments leave the group alive; nothing has been communicated.
  [[noreturn]] void refuse(const Signature& what, const std::string& text) const {
    throw Error(ErrorKind::bad_argument,
                {.rank = roster->rank, .host = host(), .operation = worker_sdk::to_string(what)},
                text);
  }

  const std::string& host() const { return roster->hosts[static_cast<std::size_t>(roster->rank)]; }

  void check_buffer(const Signature& what, const Buffer& buffer) const {
    const std::size_t element = size_of(buffer.type);
    if (element == 0) refuse(what, "unknown element type");
    if (buffer.count > std::size_t{1} << 56) refuse(what, "too many elements");
    if (!buffer.data && buffer.count > 0) refuse(what, "the array is null");
    if (reinterpret_cast<std::uintptr_t>(buffer.data) % element != 0) {
      refuse(what, "the array is not aligned to its elements");
    }
  }

  void check_peer(const Signature& what) const {
    if (what.rank < 0 || what.rank >= roster->size()) {
      refuse(what, "there is no rank " + std::to_string(what.rank) + " in a world of " +
                       std::to_string(roster->size()));
    }
    const bool to_itself = what.rank == roster->rank && what.kind != OpKind::kBroadcast;
    if (to_itself) refuse(what, "a rank cannot send to itself");
  }

  template <class Body>
  void perform(Call call, const Body& body) {
    call.start = Clock::now();
    call.deadline = call.start + op_timeout;
    if (dead.load(std::memory_order_acquire)) refuse_dead(call);
    const worker_sdk::InCollective here(progress, call);
    try {
      body(*backend, call);
    } catch (const Error& error) {
      die(error.what());
      throw;
    } catch (const std::exception& error) {
      die(error.what());
      throw worker_sdk::failure(*roster, call, ErrorKind::system, -1, error.what());
    }
  }

  template <class Body>
  void run(const Signature& what, const Body& body) {
    const Call call = number(what);
    if (queue.idle()) return perform(call, body);
    Work(queue.post([this, call, body] { perform(call, body); })).wait();
  }

  template <class Body>
  Work run_async(const Signature& what, const Body& body) {
    const Call call = number(what);
    std::function<void()> operation = [this, call, body] { perform(call, body); };
    if (roster->size() > 1) return Work(queue.post(std::move(operation)));
    auto state = std::make_shared<WorkState>();
    worker_sdk::WorkQueue::carry_out(operation, *state);
    return Work(std::move(state));
  }

  void die(const std::string& why) {
    const std::lock_guard lock(mutex);
    if (first_failure.empty()) first_failure = why;
    dead.store(true, std::memory_order_release);
  }

  [[noreturn]] void refuse_dead(const Call& call) {
    const std::lock_guard lock(mutex);
    throw worker_sdk::failure(*roster, call, ErrorKind::aborted, -1,
                              "this group is dead since: " + first_failure);
  }

  void check_all_reduce(const Signature& what, const Buffer& buffer) const;

  worker_sdk::Progress progress;
  Identity identity;
  std::shared_ptr<const worker_sdk::Roster> roster;
  std::unique_ptr<worker_sdk::StoreHost> store_host;
  std::unique_ptr<Store> store;
  std::unique_ptr<Backend> backend;
  const std::string backend_name;
  const std::chrono::milliseconds op_timeout;
  std::uint64_t collectives = 0;
  std::uint64_t messages = 0;
  std::mutex mutex;
  std::string first_failure;
  std::atomic<bool> dead{false};
  worker_sdk::WorkQueue queue;  // Last: its thread uses all of the above.
};

ProcessGroup ProcessGroup::init(const InitOptions& options) {
  if (wants_crash_report()) install_crash_report();
  if (options.op_timeout.count() <= 0 || options.init_timeout.count() <= 0) {
    throw Error(ErrorKind::bad_argument, {.operation = "ProcessGroup::init"},
                "init_timeout and op_timeout must be positive");
  }
  const auto variables = process_variables();
  const auto plan = worker_sdk::read_environment(variables, options);
  const auto page = variables.find("DDPRUN_PROGRESS");
  return ProcessGroup(std::make_unique<Impl>(worker_sdk::join(plan, options.init_timeout),
                                             options.op_timeout,
                                             page == variables.end() ? "" : page->second));
}

ProcessGroup::ProcessGroup(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ProcessGroup::ProcessGroup(ProcessGroup&&) noexcept = default;
ProcessGroup& ProcessGroup::operator=(ProcessGroup&&) noexcept = default;
ProcessGroup::~ProcessGroup() = default;

const Identity& ProcessGroup::identity() const noexcept { return impl_->identity; }

const std::string& ProcessGroup::backend() const noexcept { return impl_->backend_name; }

const std::string& ProcessGroup::host_of(int rank) const {
  if (rank < 0 || rank >= world_size()) {
    throw Error(ErrorKind::bad_argument, {.rank = impl_->roster->rank, .operation = "host_of"},
                "there is no rank " + std::to_string(rank));
  }
  return impl_->roster->hosts[static_cast<std::size_t>(rank)];
}

void ProcessGroup::set_phase(std::string_view name) { impl_->progress.set_phase(name); }

Store& ProcessGroup::store() { return *impl_->store; }

namespace {

Signature all_reduce_signature(const Buffer& buffer, ReduceOp op) {
  return {.kind = OpKind::kAllReduce, .type = buffer.type, .op = op, .count = buffer.count};
}

}  // namespace

void ProcessGroup::Impl::check_all_reduce(const Signature& what, const Buffer& buffer) const {
  check_buffer(what, buffer);
  if (what.op > ReduceOp::prod) refuse(what, "unknown reduction");
  const bool integers =
      what.type == DataType::i32 || what.type == DataType::i64 || what.type == DataType::u8;
  if (what.op == ReduceOp::avg && integers) refuse(what, "an average of integers is not defined");
}

void ProcessGroup::all_reduce(Buffer inout, ReduceOp op) {
  const Signature what = all_reduce_signature(inout, op);
  impl_->check_all_reduce(what, inout);
  impl_->run(what,
             [inout](Backend& backend, const Call& call) { backend.all_reduce(call, inout); });
}

Work ProcessGroup::all_reduce_async(Buffer inout, ReduceOp op) {
  const Signature what = all_reduce_signature(inout, op);
  impl_->check_all_reduce(what, inout);
  return impl_->run_async(
      what, [inout](Backend& backend, const Call& call) { backend.all_reduce(call, inout); });
}

void ProcessGroup::broadcast(Buffer inout, int root) {
  const Signature what{
      .kind = OpKind::kBroadcast, .type = inout.type, .rank = root, .count = inout.count};
  impl_->check_buffer(what, inout);
  impl_->check_peer(what);
  impl_->run(what, [inout](Backend& backend, const Call& call) { backend.broadcast(call, inout); });
}

void ProcessGroup::all_gather(Buffer in, Buffer out) {
  const Signature what{.kind = OpKind::kAllGather, .type = in.type, .count = in.count};
  impl_->check_buffer(what, in);
  impl_->check_buffer(what, out);
  if (out.type != in.type || out.count != in.count * static_cast<std::size_t>(world_size())) {
    impl_->refuse(what, "the output must hold world_size * " + std::to_string(in.count) +
                            " elements of the same type");
  }
  impl_->run(what,
             [in, out](Backend& backend, const Call& call) { backend.all_gather(call, in, out); });
}

void ProcessGroup::send(Buffer in, int destination) {
  const Signature what{
      .kind = OpKind::kSend, .type = in.type, .rank = destination, .count = in.count};
  impl_->check_buffer(what, in);
  impl_->check_peer(what);
  impl_->run(what, [in](Backend& backend, const Call& call) { backend.send(call, in); });
}

void ProcessGroup::recv(Buffer out, int source) {
  const Signature what{.kind = OpKind::kRecv, .type = out.type, .rank = source, .count = out.count};
  impl_->check_buffer(what, out);
  impl_->check_peer(what);
  impl_->run(what, [out](Backend& backend, const Call& call) { backend.recv(call, out); });
}

void ProcessGroup::barrier() {
  impl_->run({.kind = OpKind::kBarrier},
             [](Backend& backend, const Call& call) { backend.barrier(call); });
}

std::shared_ptr<void> ProcessGroup::allocate(std::size_t bytes) {
  const Signature what{.kind = OpKind::kAllocate, .count = bytes};
  std::shared_ptr<void> memory;
  impl_->run(what, [&memory, bytes](Backend& backend, const Call& call) {
    memory = backend.allocate(call, bytes);
  });
  return memory;
}

void ProcessGroup::abort() noexcept { impl_->backend->abort(); }

}  // namespace ddprun
