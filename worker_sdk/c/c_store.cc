// ddprun/c/c_store.h: the job's store.

#include "worker_sdk/c/c_handles.h"

using namespace ddprun;
using namespace ddprun::worker_sdk;

namespace {

Store& store_of(ddprun_group* group, const char* key) {
  require_argument(key, "the key is null");
  return live(group).group.store();
}

std::vector<std::string> keys_of(const char* const* keys, std::size_t count) {
  require_argument(keys || count == 0, "the keys are null");
  std::vector<std::string> result;
  for (std::size_t i = 0; i < count; ++i) {
    require_argument(keys[i], "a key is null");
    result.emplace_back(keys[i]);
  }
  return result;
}

}  // namespace

extern "C" {

ddprun_status ddprun_store_set(ddprun_group* group, const char* key, const void* value,
                               size_t bytes) {
  return guarded([&] {
    require_argument(value || bytes == 0, "the value is null");
    store_of(group, key).set(key, {static_cast<const char*>(value), bytes});
  });
}

ddprun_status ddprun_store_get(ddprun_group* group, const char* key, int64_t timeout_ms,
                               const void** value, size_t* bytes) {
  return guarded([&] {
    thread_local std::string kept;
    require_argument(value && bytes, "a pointer is null");
    kept = store_of(group, key).get(key, std::chrono::milliseconds(timeout_ms));
    *value = kept.c_str();
    *bytes = kept.size();
  });
}

ddprun_status ddprun_store_add(ddprun_group* group, const char* key, int64_t delta, int64_t* sum) {
  return guarded([&] {
    require_argument(sum, "a pointer is null");
    *sum = store_of(group, key).add(key, delta);
  });
}

ddprun_status ddprun_store_check(ddprun_group* group, const char* const* keys, size_t count,
                                 int* exist) {
  return guarded([&] {
    require_argument(exist, "a pointer is null");
    *exist = live(group).group.store().check(keys_of(keys, count)) ? 1 : 0;
  });
}

ddprun_status ddprun_store_wait(ddprun_group* group, const char* const* keys, size_t count,
                                int64_t timeout_ms) {
  return guarded([&] {
    live(group).group.store().wait(keys_of(keys, count), std::chrono::milliseconds(timeout_ms));
  });
}

ddprun_status ddprun_store_erase(ddprun_group* group, const char* key, int* existed) {
  return guarded([&] {
    const bool found = store_of(group, key).erase(key);
    if (existed) *existed = found ? 1 : 0;
  });
}

}  // extern "C"
