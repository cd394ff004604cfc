// ddprun/c/c_functions.h: the results of the program's functions through memory.

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "ddprun/crash_report.h"
#include "ddprun/expect_steps.h"
#include "ddprun/metrics.h"
#include "ddprun/seeds.h"
#include "ddprun/spawn.h"
#include "worker_sdk/base/system_limits.h"
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

// ddprun/c/c_process.h: crash reports, spawn, seeds, metrics.

using namespace ddprun;
using namespace ddprun::worker_sdk;

struct ddprun_metrics {
  Metrics metrics = {};
  std::map<std::string, Metric, std::less<>> reduced = {};
};

extern "C" {

void ddprun_install_crash_report(void) { install_crash_report(); }
void ddprun_install_crash_report_before(void) { install_crash_report(true); }

ddprun_status ddprun_spawn(int ranks, ddprun_rank_body body, void* user, int64_t grace_ms,
                           int* exit_code) {
  return guarded([&] {
    require_argument(body, "the function is null");
    if (exit_code) *exit_code = 0;
    SpawnOptions options;
    options.grace = or_default(grace_ms, options.grace);
    try {
      spawn(
          ranks,
          [&](int rank) {
            const int code = body(rank, user);
            if (code == 0) return;
            std::fflush(nullptr);
            const bool whole = (code & 0xff) != 0;  // The kernel would reduce 256 to 0.
            ::_exit(whole ? code : 1);
          },
          options);
    } catch (const SpawnError& error) {
      if (exit_code) *exit_code = error.exit_code();
      throw;
    }
  });
}

ddprun_status ddprun_shared_seed(ddprun_group* group, uint64_t* seed) {
  return guarded([&] {
    require_argument(seed, "a pointer is null");
    *seed = shared_seed(live(group).group);
  });
}

ddprun_status ddprun_expect_steps(ddprun_group* group, int64_t more) {
  return guarded([&] { expect_steps(live(group).group, more); });
}

ddprun_status ddprun_metrics_create(ddprun_metrics** metrics) {
  return guarded([&] {
    require_argument(metrics, "the pointer for the handle is null");
    *metrics = nullptr;
    *metrics = new ddprun_metrics;
  });
}

void ddprun_metrics_destroy(ddprun_metrics* metrics) { delete metrics; }

ddprun_status ddprun_metrics_add(ddprun_metrics* metrics, const char* name, double value,
                                 double weight) {
  return guarded([&] {
    require_argument(name, "the name is null");
    live(metrics).metrics.add(name, value, weight);
  });
}

ddprun_status ddprun_metrics_reduce(ddprun_metrics* metrics, ddprun_group* group, size_t* count) {
  return guarded([&] {
    require_argument(metrics && count, "a pointer is null");
    metrics->reduced = metrics->metrics.reduce(live(group).group);
    *count = metrics->reduced.size();
  });
}

ddprun_status ddprun_metrics_get(const ddprun_metrics* metrics, size_t i, ddprun_metric* metric) {
  return guarded([&] {
    require_argument(i < live(metrics).reduced.size(), "there is no such metric");
    const auto& [name, m] = *std::next(metrics->reduced.begin(), static_cast<std::ptrdiff_t>(i));
    fill(metric, {0, name.c_str(), m.average, m.sum, m.weight, m.min, m.max});
  });
}

ddprun_status ddprun_average(ddprun_group* group, double value, double* average) {
  return guarded([&] {
    require_argument(average, "a pointer is null");
    *average = average_over_ranks(live(group).group, value);
  });
}

}  // extern "C"

// ddprun/c/c_collectives.h: each collective in one line.

using namespace ddprun;
using namespace ddprun::worker_sdk;

extern "C" {

ddprun_status ddprun_all_reduce(ddprun_group* group, const ddprun_buffer* inout, ddprun_op op,
                                int64_t timeout_ms) {
  return guarded(
      [&] { live(group).group.all_reduce(buffer_of(inout), op_of(op), timeout_of(timeout_ms)); });
}

ddprun_status ddprun_reduce(ddprun_group* group, const ddprun_buffer* in, const ddprun_buffer* out,
                            ddprun_op op, int root, int64_t timeout_ms) {
  return guarded([&] {
    live(group).group.reduce(buffer_of(in), buffer_of(out), root, op_of(op),
                             timeout_of(timeout_ms));
  });
}

ddprun_status ddprun_reduce_scatter(ddprun_group* group, const ddprun_buffer* in,
                                    const ddprun_buffer* out, ddprun_op op, int64_t timeout_ms) {
  return guarded([&] {
    live(group).group.reduce_scatter(buffer_of(in), buffer_of(out), op_of(op),
                                     timeout_of(timeout_ms));
  });
}

ddprun_status ddprun_broadcast(ddprun_group* group, const ddprun_buffer* inout, int root,
                               int64_t timeout_ms) {
  return guarded(
      [&] { live(group).group.broadcast(buffer_of(inout), root, timeout_of(timeout_ms)); });
}

ddprun_status ddprun_all_gather(ddprun_group* group, const ddprun_buffer* in,
                                const ddprun_buffer* out, int64_t timeout_ms) {
  return guarded(
      [&] { live(group).group.all_gather(buffer_of(in), buffer_of(out), timeout_of(timeout_ms)); });
}

ddprun_status ddprun_all_to_all(ddprun_group* group, const ddprun_buffer* in,
                                const ddprun_buffer* out, int64_t timeout_ms) {
  return guarded(
      [&] { live(group).group.all_to_all(buffer_of(in), buffer_of(out), timeout_of(timeout_ms)); });
}

ddprun_status ddprun_gather(ddprun_group* group, const ddprun_buffer* in, const ddprun_buffer* out,
                            int root, int64_t timeout_ms) {
  return guarded([&] {
    live(group).group.gather(buffer_of(in), buffer_of(out), root, timeout_of(timeout_ms));
  });
}

ddprun_status ddprun_scatter(ddprun_group* group, const ddprun_buffer* in, const ddprun_buffer* out,
                             int root, int64_t timeout_ms) {
  return guarded([&] {
    live(group).group.scatter(buffer_of(in), buffer_of(out), root, timeout_of(timeout_ms));
  });
}

ddprun_status ddprun_send(ddprun_group* group, const ddprun_buffer* in, int destination,
                          int64_t timeout_ms) {
  return guarded(
      [&] { live(group).group.send(buffer_of(in), destination, timeout_of(timeout_ms)); });
}

ddprun_status ddprun_recv(ddprun_group* group, const ddprun_buffer* out, int source,
                          int64_t timeout_ms) {
  return guarded([&] { live(group).group.recv(buffer_of(out), source, timeout_of(timeout_ms)); });
}

ddprun_status ddprun_barrier(ddprun_group* group, int64_t timeout_ms) {
  return guarded([&] { live(group).group.barrier(timeout_of(timeout_ms)); });
}

ddprun_status ddprun_all_reduce_async(ddprun_group* group, const ddprun_buffer* inout, ddprun_op op,
                                      int64_t timeout_ms, ddprun_work** work) {
  return guarded([&] {
    require_argument(work, "the pointer for the handle is null");
    *work = nullptr;
    *work = new ddprun_work{
        live(group).group.all_reduce_async(buffer_of(inout), op_of(op), timeout_of(timeout_ms))};
  });
}

}  // extern "C"

// ddprun/c/c_base.h: errors, and the conversion of arguments to C++.

namespace ddprun::worker_sdk {
namespace {

static_assert(kGrows<ddprun_buffer> && kGrows<ddprun_error_info>);
static_assert(std::size(kDataTypes) == DDPRUN_C128 + 1, "c_base.h lacks a type");

// Fixed size, so that an error can be reported when there is no memory.
thread_local ddprun_error_info last_error = {.size = sizeof(ddprun_error_info),
                                             .status = DDPRUN_OK,
                                             .rank = -1,
                                             .peer = -1,
                                             .missing_count = 0,
                                             .waited_ms = 0,
                                             .missing = {},
                                             .host = {},
                                             .operation = {},
                                             .text = {},
                                             .message = {}};

// The exception of last_error. A program's function may return its status to callers that expect an
// exception.
thread_local std::exception_ptr last_exception;

template <std::size_t kBytes>
void put(char (&to)[kBytes], std::string_view text) noexcept {
  const std::size_t length = std::min(text.size(), kBytes - 1);
  std::memcpy(to, text.data(), length);
  to[length] = '\0';
}

void put(ddprun_error_info& info, const Error& error) noexcept {
  const Error::Where& where = error.where();
  info.status = static_cast<ddprun_status>(error.code().value());
  info.rank = where.rank;
  info.peer = where.peer;
  info.waited_ms = where.waited.count();
  info.missing_count = static_cast<std::int32_t>(where.missing.size());
  const std::size_t kept = std::min<std::size_t>(where.missing.size(), DDPRUN_MISSING_MAX);
  std::copy_n(where.missing.begin(), kept, info.missing);
  put(info.host, where.host);
  put(info.operation, where.operation);
  put(info.text, error.text());
  put(info.message, error.what());
}

ddprun_status remember(const Error& error) noexcept {
  last_error = {};
  put(last_error, error);
  return last_error.status;
}

ddprun_status remember(const char* text) noexcept {
  last_error = {};
  last_error.status = DDPRUN_INTERNAL;
  last_error.rank = last_error.peer = -1;
  put(last_error.text, text);
  put(last_error.message, text);
  return DDPRUN_INTERNAL;
}

}  // namespace

ddprun_status status_of_exception() noexcept {
  last_exception = std::current_exception();
  try {
    throw;
  } catch (const Error& error) {
    return remember(error);
  } catch (const std::system_error& error) {
    return remember(as_error(error, {}));
  } catch (const std::exception& error) {
    return remember(error.what());
  } catch (...) {
    return remember("an exception of an unknown type");
  }
}

void rethrow(ddprun_status status) {
  if (last_exception && last_error.status == status) {
    std::rethrow_exception(std::exchange(last_exception, nullptr));
  }
  const bool known = status > DDPRUN_OK && status <= DDPRUN_WRONG_RESULT;
  throw Error(known ? static_cast<ErrorKind>(status) : ErrorKind::system, {},
              "a function of the program returned " + std::to_string(status));
}

void describe(const Error* error, ddprun_error_info* info) {
  ddprun_error_info found = {};
  found.rank = found.peer = -1;
  if (error) put(found, *error);
  fill(info, found);
}

void require_argument(bool ok, const char* text) {
  if (!ok) throw Error(ErrorKind::bad_argument, {}, text);
}

Buffer buffer_of(const ddprun_buffer* given) {
  const ddprun_buffer buffer = struct_of(given);
  require_argument(buffer.reserved == 0, "a reserved field is not 0");
  require_argument(buffer.type >= 0 && std::cmp_less(buffer.type, std::size(kDataTypes)),
                   "unknown element type");
  return {buffer.data, buffer.count, static_cast<DataType>(buffer.type)};
}

ReduceOp op_of(ddprun_op op) {
  require_argument(op >= DDPRUN_SUM && op <= DDPRUN_PREMUL_SUM, "unknown reduction");
  return static_cast<ReduceOp>(op);
}

CallOptions timeout_of(std::int64_t milliseconds) {
  return {.timeout = std::chrono::milliseconds(milliseconds)};
}

}  // namespace ddprun::worker_sdk

using namespace ddprun::worker_sdk;

extern "C" {

int ddprun_c_api_version(void) { return DDPRUN_C_API_VERSION; }
const char* ddprun_version(void) { return DDPRUN_VERSION; }
const char* ddprun_last_error(void) { return last_error.message; }
int ddprun_last_error_peer(void) { return last_error.peer; }

ddprun_status ddprun_last_error_info(ddprun_error_info* info) {
  const ddprun_error_info before = last_error;
  const ddprun_status status = guarded([&] { fill(info, before); });
  last_error = before;
  return status;
}

}  // extern "C"
