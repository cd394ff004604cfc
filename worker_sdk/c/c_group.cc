// ddprun/c/c_collectives.h: bytes of a length that only the sender knows.

#include "ddprun/objects.h"

#include <algorithm>

#include "worker_sdk/base/operation.h"
#include "worker_sdk/c/c_handles.h"

using namespace ddprun;
using namespace ddprun::worker_sdk;

namespace {

// The result of this thread's last call.
struct Kept {
  std::string bytes;
  std::vector<std::size_t> counts;
};

Kept& kept() {
  thread_local Kept one;
  return one;
}

std::string_view bytes_of(const void* bytes, std::size_t count) {
  require_argument(bytes || count == 0, "the bytes are null");
  return {static_cast<const char*>(bytes), count};
}

void lend(const std::vector<std::string>& each, const void** all, const std::size_t** counts) {
  Kept& mine = kept();
  mine = {};
  for (const std::string& one : each) {
    mine.bytes += one;
    mine.counts.push_back(one.size());
  }
  *all = each.empty() ? nullptr : mine.bytes.data();
  *counts = each.empty() ? nullptr : mine.counts.data();
}

}  // namespace

extern "C" {

ddprun_status ddprun_broadcast_bytes(ddprun_group* group, const void* bytes, size_t count, int root,
                                     const void** all, size_t* all_count) {
  return guarded([&] {
    require_argument(all && all_count, "a pointer is null");
    const bool sends = live(group).group.rank() == root;
    const auto mine = sends ? bytes_of(bytes, count) : std::string_view();
    kept() = {broadcast_bytes(group->group, mine, root), {}};
    *all = kept().bytes.data();
    *all_count = kept().bytes.size();
  });
}

ddprun_status ddprun_all_gather_bytes(ddprun_group* group, const void* bytes, size_t count,
                                      const void** all, const size_t** counts) {
  return guarded([&] {
    require_argument(all && counts, "a pointer is null");
    lend(all_gather_bytes(live(group).group, bytes_of(bytes, count)), all, counts);
  });
}

ddprun_status ddprun_gather_bytes(ddprun_group* group, const void* bytes, size_t count, int root,
                                  const void** all, const size_t** counts) {
  return guarded([&] {
    require_argument(all && counts, "a pointer is null");
    lend(gather_bytes(live(group).group, bytes_of(bytes, count), root), all, counts);
  });
}

}  // extern "C"

// ddprun/c/c_group.h: groups' lives, their members, their memory.

namespace ddprun::worker_sdk {
namespace {

// The options of either struct.
template <class Options>
NcclOptions nccl_options_of(const Options& options) {
  return {.device = options.device_given ? options.device : -1,
          .max_ctas = options.max_ctas,
          .may_shrink = options.may_shrink != 0};
}

}  // namespace

InitOptions init_options_of(const ddprun_init_options* given) {
  const auto options = options_of(given);
  require_argument(options.world_size >= 0, "world_size is negative");
  require_argument(options.world_size > 0 || options.rank <= 0, "rank is given, but no world_size");
  InitOptions result;
  if (options.init_method) result.init_method = options.init_method;
  if (options.backend) result.backend = options.backend;
  if (options.host) result.host = options.host;
  result.nccl = nccl_options_of(options);
  if (options.world_size > 0) {
    result.rank = options.rank;
    result.world_size = options.world_size;
  }
  result.init_timeout = or_default(options.init_timeout_ms, result.init_timeout);
  result.op_timeout = or_default(options.op_timeout_ms, result.op_timeout);
  return result;
}

}  // namespace ddprun::worker_sdk

using namespace ddprun;
using namespace ddprun::worker_sdk;

namespace {

static_assert(kGrows<ddprun_init_options> && kGrows<ddprun_store_calls> &&
              kGrows<ddprun_create_options>);

// The program's functions as a store.
class StoreOfCalls : public Store {
 public:
  explicit StoreOfCalls(const ddprun_store_calls& calls) : calls_(calls) {
    require_argument(calls.set && calls.get && calls.add, "a function of the store is null");
  }

  void set(std::string_view key, std::string_view value) override {
    require(calls_.set(calls_.user, std::string(key).c_str(), value.data(), value.size()), "set");
  }
  std::string get(std::string_view key, std::chrono::milliseconds) override {
    const auto value = find(std::string(key));
    if (value) return *value;
    throw Error(ErrorKind::timed_out, {.operation = "get"},
                "there is no key \"" + std::string(key) + "\"");
  }
  std::int64_t add(std::string_view key, std::int64_t delta) override {
    std::int64_t sum = 0;
    require(calls_.add(calls_.user, std::string(key).c_str(), delta, &sum), "add");
    return sum;
  }
  bool check(const std::vector<std::string>& keys) override {
    return std::all_of(keys.begin(), keys.end(), [&](const auto& key) { return find(key); });
  }
  void wait(const std::vector<std::string>& keys, std::chrono::milliseconds) override {
    if (check(keys)) return;
    throw Error(ErrorKind::timed_out, {.operation = "wait"}, "a key is not there");
  }
  bool erase(std::string_view key) override {
    const std::string name(key);
    if (!calls_.erase || !find(name)) return false;
    require(calls_.erase(calls_.user, name.c_str()), "erase");
    return true;
  }

 private:
  static void require(int result, const char* operation) {
    if (result == 0) return;
    throw Error(ErrorKind::unreachable, {.operation = operation},
                "the program's store failed with " + std::to_string(result));
  }
  std::optional<std::string> find(const std::string& key) {
    const void* value = nullptr;
    std::size_t bytes = 0;
    require(calls_.get(calls_.user, key.c_str(), &value, &bytes), "get");
    if (!value) return std::nullopt;
    return std::string(static_cast<const char*>(value), bytes);
  }

  const ddprun_store_calls calls_;
};

CreateOptions create_options_of(const ddprun_create_options* given) {
  const auto options = struct_of(given);
  CreateOptions result;
  result.rank = options.rank;
  result.world_size = options.world_size;
  if (options.prefix) result.prefix = options.prefix;
  if (options.backend) result.backend = options.backend;
  if (options.host) result.host = options.host;
  if (options.address) result.address = options.address;
  if (options.job_ranks && options.world_size > 0) {
    result.job_ranks.assign(options.job_ranks, options.job_ranks + options.world_size);
  }
  result.nccl = nccl_options_of(options);
  result.init_timeout = or_default(options.init_timeout_ms, result.init_timeout);
  result.op_timeout = or_default(options.op_timeout_ms, result.op_timeout);
  return result;
}

}  // namespace

extern "C" {

ddprun_status ddprun_group_create(const ddprun_store_calls* store,
                                  const ddprun_create_options* options, ddprun_group** group) {
  return guarded([&] {
    require_argument(group, "the pointer for the handle is null");
    *group = nullptr;
    auto calls = std::make_shared<StoreOfCalls>(struct_of(store));
    *group = new ddprun_group{ProcessGroup::create(std::move(calls), create_options_of(options))};
  });
}

ddprun_status ddprun_group_init(const ddprun_init_options* options, ddprun_group** group) {
  return guarded([&] {
    require_argument(group, "the pointer for the handle is null");
    *group = nullptr;
    *group = new ddprun_group{ProcessGroup::init(init_options_of(options))};
  });
}

void ddprun_group_destroy(ddprun_group* group) { delete group; }

ddprun_status ddprun_group_shutdown(ddprun_group* group, int64_t limit_ms) {
  return guarded([&] {
    require_argument(limit_ms >= 0, "the limit must not be negative");
    if (live(group).group.shutdown(std::chrono::milliseconds(limit_ms))) return;
    throw Error(ErrorKind::timed_out,
                {.rank = group->group.rank(),
                 .operation = "shutdown",
                 .waited = std::chrono::milliseconds(limit_ms)},
                "operations had not ended, and are aborted");
  });
}

ddprun_status ddprun_group_split(ddprun_group* group, int color, int key, ddprun_group** part) {
  return guarded([&] {
    require_argument(group && part, "a handle is null");
    *part = nullptr;
    auto split = group->group.split(color, key);
    if (split) *part = new ddprun_group{std::move(*split)};
  });
}

ddprun_status ddprun_group_shrink(ddprun_group* group, const int32_t* lost, size_t count,
                                  int64_t patience_ms, ddprun_group** smaller) {
  return guarded([&] {
    require_argument(group && smaller && (lost || count == 0), "a pointer is null");
    *smaller = nullptr;
    ShrinkOptions options;
    if (count > 0) options.lost.assign(lost, lost + count);
    options.patience = or_default(patience_ms, options.patience);
    *smaller = new ddprun_group{group->group.shrink(options)};
  });
}

void ddprun_group_abort(ddprun_group* group) {
  if (group) group->group.abort();
}

int ddprun_rank(const ddprun_group* group) {
  return answer(-1, [&] { return live(group).group.rank(); });
}
int ddprun_world_size(const ddprun_group* group) {
  return answer(-1, [&] { return live(group).group.world_size(); });
}
int ddprun_local_rank(const ddprun_group* group) {
  return answer(-1, [&] { return live(group).group.local_rank(); });
}
int ddprun_local_world_size(const ddprun_group* group) {
  return answer(-1, [&] { return live(group).group.identity().local_world_size; });
}
int ddprun_group_rank(const ddprun_group* group) {
  return answer(-1, [&] { return live(group).group.identity().group_rank; });
}
const char* ddprun_run_id(const ddprun_group* group) {
  return answer("", [&] { return live(group).group.identity().run_id.c_str(); });
}
int ddprun_restart_count(const ddprun_group* group) {
  return answer(-1, [&] { return live(group).group.restart_count(); });
}
const char* ddprun_backend(const ddprun_group* group) {
  return answer("", [&] { return live(group).group.backend().c_str(); });
}
int ddprun_device(const ddprun_group* group) {
  return answer(-1, [&] { return live(group).group.device(); });
}
const char* ddprun_host_of(const ddprun_group* group, int rank) {
  return answer("", [&] { return live(group).group.host_of(rank).c_str(); });
}

ddprun_status ddprun_set_phase(ddprun_group* group, const char* name) {
  return guarded([&] { live(group).group.set_phase(name ? name : ""); });
}

ddprun_status ddprun_use_stream(ddprun_group* group, void* stream, int given) {
  return guarded(
      [&] { live(group).group.use_stream(given ? std::optional<Stream>(stream) : std::nullopt); });
}

ddprun_status ddprun_copy(ddprun_group* group, void* to, const void* from, size_t bytes) {
  return guarded([&] {
    require_argument((to && from) || bytes == 0, "an array is null");
    live(group).group.copy(to, from, bytes);
  });
}

ddprun_status ddprun_zero(ddprun_group* group, void* to, size_t bytes) {
  return guarded([&] {
    require_argument(to || bytes == 0, "the array is null");
    live(group).group.zero(to, bytes);
  });
}

ddprun_status ddprun_group_completion_fd(ddprun_group* group, int* fd) {
  return guarded([&] {
    require_argument(fd, "the pointer for the descriptor is null");
    *fd = live(group).group.completion_descriptor();
  });
}

ddprun_status ddprun_allocate(ddprun_group* group, size_t bytes, void** data,
                              ddprun_memory** memory) {
  return guarded([&] {
    require_argument(group && data && memory, "a pointer is null");
    *data = nullptr, *memory = nullptr;
    *memory = new ddprun_memory{group->group.allocate(bytes)};
    *data = (*memory)->memory.get();
  });
}

void ddprun_memory_destroy(ddprun_memory* memory) { delete memory; }

}  // extern "C"

// ddprun/c/c_collectives.h: ddprun_submit(), and the works that it returns.

using namespace ddprun;
using namespace ddprun::worker_sdk;

namespace {

// `factor` is a double, so kGrows cannot check this struct: it has no padding.
static_assert(sizeof(ddprun_call) == 6 * sizeof(std::int32_t) + 3 * sizeof(void*) +
                                         3 * sizeof(std::size_t) + sizeof(std::int64_t) +
                                         sizeof(double));
// The numbers are the same.
static_assert(DDPRUN_REDUCE == static_cast<int>(kLastOpKind));

// The arrays of one side of a call.
class Side {
 public:
  Side(std::string of, const ddprun_buffer* arrays, std::size_t count)
      : of_(std::move(of)), arrays_(arrays), count_(count) {
    require_argument(arrays || count == 0, "an array of structs is null");
  }

  Buffer one() const {
    if (count_ != 1) refuse("one array");
    return buffer_of(arrays_);
  }
  // An array that only the root has.
  Buffer one_if(bool wanted) const { return wanted ? one() : Buffer{}; }
  PartsBuffer parts(int ranks) const {
    if (count_ == 1) return one();  // Even for one rank: some backends need parts in one array.
    if (count_ != static_cast<std::size_t>(ranks)) refuse("one array, or one for each rank");
    std::vector<Buffer> each;
    for (std::size_t i = 0; i < count_; ++i) {
      const ddprun_buffer next = struct_of(arrays_, i);
      each.push_back(buffer_of(&next));
    }
    return each;
  }
  PartsBuffer parts_if(bool wanted, int ranks) const {
    return wanted ? parts(ranks) : PartsBuffer();
  }

 private:
  [[noreturn]] void refuse(const std::string& what) const {
    throw Error(ErrorKind::bad_argument, {},
                of_ + " must be " + what + ", not " + std::to_string(count_));
  }

  const std::string of_;  // "`in` of all_gather"
  const ddprun_buffer* arrays_;
  std::size_t count_;
};

CallOptions call_options_of(const ddprun_call& call) {
  require_argument(call.reserved == 0, "a reserved field is not 0");
  require_argument((call.flags & ~std::uint32_t{DDPRUN_IN_STREAM | DDPRUN_ON_HOST}) == 0,
                   "unknown flags");
  CallOptions options = timeout_of(call.timeout_ms);
  options.tag = call.tag;
  options.factor = call.factor;
  options.on_host = (call.flags & DDPRUN_ON_HOST) != 0;
  if (call.flags & DDPRUN_IN_STREAM) options.stream = call.stream;
  return options;
}

// Makes the operation of `call`, in the form that returns a Work, or in the one that blocks and
// returns none.
template <class Async, class Blocking>
Work either(bool async, const Async& start, const Blocking& run) {
  if (async) return start();
  run();
  return Work();
}

#define EITHER(name, ...) \
  either(                 \
      async, [&] { return group.name##_async(__VA_ARGS__); }, [&] { group.name(__VA_ARGS__); })

Work submit(ProcessGroup& group, const ddprun_call& call, bool async) {
  const CallOptions o = call_options_of(call);
  const std::string name = name_of(static_cast<OpKind>(call.operation));
  const Side in("`in` of " + name, call.in, call.ins), out("`out` of " + name, call.out, call.outs);
  const int n = group.world_size(), root = call.root;
  const bool is_root = root == group.rank();
  switch (call.operation) {
    case DDPRUN_ALL_REDUCE: return EITHER(all_reduce, out.one(), op_of(call.op), o);
    case DDPRUN_BROADCAST: return EITHER(broadcast, out.one(), root, o);
    case DDPRUN_REDUCE:
      return EITHER(reduce, in.one(), out.one_if(is_root), root, op_of(call.op), o);
    case DDPRUN_ALL_GATHER: return EITHER(all_gather, in.one(), out.parts(n), o);
    case DDPRUN_REDUCE_SCATTER:
      return EITHER(reduce_scatter, in.parts(n), out.one(), op_of(call.op), o);
    case DDPRUN_ALL_TO_ALL: return EITHER(all_to_all, in.parts(n), out.parts(n), o);
    case DDPRUN_GATHER: return EITHER(gather, in.one(), out.parts_if(is_root, n), root, o);
    case DDPRUN_SCATTER: return EITHER(scatter, in.parts_if(is_root, n), out.one(), root, o);
    case DDPRUN_SEND: return EITHER(send, in.one(), root, o);
    case DDPRUN_RECV: return EITHER(recv, out.one(), root, o);
    case DDPRUN_BARRIER: return EITHER(barrier, o);
    default: require_argument(false, "unknown operation");
  }
  return Work();
}

#undef EITHER

}  // namespace

extern "C" {

ddprun_status ddprun_submit(ddprun_group* group, const ddprun_call* call, ddprun_work** work) {
  return guarded([&] {
    if (work) *work = nullptr;
    auto started = submit(live(group).group, struct_of(call), work != nullptr);
    if (work) *work = new ddprun_work{std::move(started)};
  });
}

ddprun_status ddprun_work_wait(ddprun_work* work) {
  return guarded([&] { live(work).work.wait(); });
}

ddprun_status ddprun_work_wait_for(ddprun_work* work, int64_t limit_ms, int* done) {
  return guarded([&] {
    require_argument(done, "a pointer is null");
    *done = 1;  // Also if it has failed.
    *done = live(work).work.wait_for(std::chrono::milliseconds(limit_ms)) ? 1 : 0;
  });
}

ddprun_status ddprun_work_synchronize(ddprun_work* work) {
  return guarded([&] { live(work).work.synchronize(); });
}

int ddprun_work_done(const ddprun_work* work) {
  return answer(-1, [&] { return live(work).work.done() ? 1 : 0; });
}

ddprun_status ddprun_work_error(const ddprun_work* work, ddprun_error_info* info) {
  return guarded([&] {
    const auto error = live(work).work.error();
    describe(error ? &*error : nullptr, info);
  });
}

ddprun_status ddprun_work_times(const ddprun_work* work, int64_t* started_ns,
                                int64_t* duration_ns) {
  return guarded([&] {
    require_argument(started_ns && duration_ns, "a pointer is null");
    const auto since_start = live(work).work.started().time_since_epoch();
    *started_ns = std::chrono::nanoseconds(since_start).count();
    *duration_ns = work->work.duration().count();
  });
}

void ddprun_work_destroy(ddprun_work* work) { delete work; }

}  // extern "C"
