// ddprun/c/c_group.h: groups' lives, who they are, their memory.

#include <algorithm>

#include "worker_sdk/c/c_api.h"

namespace ddprun::worker_sdk {

namespace {

// Of either struct of options.
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
    require_argument(group, "the place for the handle is null");
    *group = nullptr;
    auto calls = std::make_shared<StoreOfCalls>(struct_of(store));
    *group = new ddprun_group{ProcessGroup::create(std::move(calls), create_options_of(options))};
  });
}

ddprun_status ddprun_group_init(const ddprun_init_options* options, ddprun_group** group) {
  return guarded([&] {
    require_argument(group, "the place for the handle is null");
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
    require_argument(fd, "the place for the descriptor is null");
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
