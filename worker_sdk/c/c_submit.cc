// ddprun/c/c_collectives.h: ddprun_submit(), and the works that it returns.

#include "worker_sdk/base/operation.h"
#include "worker_sdk/c/c_handles.h"

using namespace ddprun;
using namespace ddprun::worker_sdk;

namespace {

// `factor` is the reason why kGrows does not say it: there is no padding.
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
  // Of the root alone.
  Buffer one_if(bool wanted) const { return wanted ? one() : Buffer{}; }
  PartsBuffer parts(int ranks) const {
    if (count_ == 1) return one();  // Also of one rank: not all backends have parts that lie apart.
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

// What `call` names, in the form that returns a Work, or in the one that blocks and returns none.
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
    *done = 1;  // Also of one that has failed.
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
