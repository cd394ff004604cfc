#pragma once
// The common part of the implementations of ddprun/c_api.h: handles, and how exceptions become
// statuses. Used by the files of this room.

#include <cstring>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddprun/c_api.h"
#include "ddprun/distributed_data_parallel.h"
#include "ddprun/distributed_sampler.h"
#include "ddprun/elastic/global_batches.h"
#include "ddprun/process_group.h"

struct ddprun_group {
  ddprun::ProcessGroup group;
};
struct ddprun_work {
  ddprun::Work work;
};
struct ddprun_memory {
  std::shared_ptr<void> memory;
};
struct ddprun_batches {
  ddprun::GlobalBatches batches;
};
struct ddprun_ddp {
  ddprun::DistributedDataParallel ddp;
  std::size_t parameters = 0;
  std::optional<ddprun::DistributedDataParallel::NoSync> no_sync = {};
};
struct ddprun_sampler {
  ddprun::DistributedSampler sampler;
  std::vector<std::int64_t> indices = {};
};

namespace ddprun::worker_sdk {

// The status of the current exception; remembers its description.
ddprun_status status_of_exception() noexcept;
// Describes `error` in *info; info->size has been checked. Null: that there is no error.
void describe(const Error* error, ddprun_error_info* info);
// Throws Error(bad_argument) unless `ok`.
void require_argument(bool ok, const char* text);
Buffer buffer_of(const ddprun_buffer* buffer);
ReduceOp op_of(ddprun_op op);
CallOptions timeout_of(std::int64_t milliseconds);
InitOptions init_options_of(const ddprun_init_options* given);
// Throws the exception of this thread's last failed call, if `status` is its status; else one that
// names the status.
[[noreturn]] void rethrow(ddprun_status status);

template <class Handle>
Handle& live(Handle* handle) {
  require_argument(handle != nullptr, "the handle is null");
  return *handle;
}

// Without padding, a new field cannot lie in bytes that older programs leave undefined.
template <class T>
constexpr bool kGrows = std::has_unique_object_representations_v<T>;

// The size of a struct in version 1 of the interface, which every program has. Once a field is
// added this is a number for each struct, and the struct of an older program ends before the field.
template <class T>
constexpr std::size_t kFirstSize = sizeof(T);

// A copy of the caller's struct. Its end may be missing, but it must not be longer than this
// library knows.
template <class T>
T struct_of(const T* given) {
  require_argument(given != nullptr, "a struct is null");
  require_argument(given->size >= kFirstSize<T> && given->size <= sizeof(T),
                   "this library does not support this size of the struct");
  T known{};
  std::memcpy(&known, given, given->size);
  return known;
}

// Element `i` of the caller's array. Elements have the size that the first one states.
template <class T>
T struct_of(const T* array, std::size_t i) {
  const T first = struct_of(array);
  const T element =
      struct_of(reinterpret_cast<const T*>(reinterpret_cast<const char*>(array) + i * first.size));
  require_argument(element.size == first.size, "the structs of an array have different sizes");
  return element;
}

template <class T>
T options_of(const T* given) {
  return given ? struct_of(given) : T{};
}

// Copies `value` into the caller's struct, as far as that goes.
template <class T>
void fill(T* given, T value) {
  value.size = struct_of(given).size;
  std::memcpy(given, &value, value.size);
}

// The samples as C has them; `kept` holds them.
void lend_samples(const std::vector<Sample>& samples, std::vector<ddprun_sample>& kept,
                  const ddprun_sample** first, std::size_t* count);

inline std::chrono::milliseconds or_default(std::int64_t value,
                                            std::chrono::milliseconds otherwise) {
  return value == 0 ? otherwise : std::chrono::milliseconds(value);
}

template <class Body>
ddprun_status guarded(const Body& body) noexcept {
  try {
    body();
    return DDPRUN_OK;
  } catch (...) {
    return status_of_exception();
  }
}

// The result of `body`, or `otherwise` if it throws, as for a null handle.
template <class T, class Body>
T answer(T otherwise, const Body& body) noexcept {
  guarded([&] { otherwise = body(); });
  return otherwise;
}

}  // namespace ddprun::worker_sdk
