// ddprun/c/c_functions.h: the results of the program's functions through memory.

#include "worker_sdk/c/c_handles.h"

namespace {

template <class Call>
std::int32_t result_of(const Call& call) {
  std::int32_t result = DDPRUN_NOT_ENDED;
  call(static_cast<void*>(&result));
  return result;
}

const ddprun_functions& functions_of(void* user) {
  return *static_cast<const ddprun_functions*>(user);
}

constexpr ddprun_functions kWithResults = {
    .size = sizeof(ddprun_functions),
    .body = [](ddprun_step* step, void* user) {
      return result_of([&](void* result) { functions_of(user).body(step, result); });
    },
    .between = [](ddprun_group* group, void* user) {
      return result_of([&](void* result) { functions_of(user).between(group, result); });
    },
    .apply = [](void* user) {
      return result_of([&](void* result) { functions_of(user).apply(result); });
    },
    .save = [](void* user, const void** state, std::size_t* bytes) {
      return result_of([&](void* result) { functions_of(user).save(result, state, bytes); });
    },
    .load = [](void* user, const void* state, std::size_t bytes) {
      return result_of([&](void* result) { functions_of(user).load(result, state, bytes); });
    },
    .set = [](void* user, const char* key, const void* value, std::size_t bytes) -> int {
      return result_of([&](void* result) { functions_of(user).set(result, key, value, bytes); });
    },
    .get = [](void* user, const char* key, const void** value, std::size_t* bytes) -> int {
      return result_of([&](void* result) { functions_of(user).get(result, key, value, bytes); });
    },
    .add = [](void* user, const char* key, std::int64_t delta, std::int64_t* sum) -> int {
      return result_of([&](void* result) { functions_of(user).add(result, key, delta, sum); });
    },
    .erase = [](void* user, const char* key) -> int {
      return result_of([&](void* result) { functions_of(user).erase(result, key); });
    },
};

}  // namespace

extern "C" {

const ddprun_functions* ddprun_functions_with_results(void) { return &kWithResults; }

}  // extern "C"
