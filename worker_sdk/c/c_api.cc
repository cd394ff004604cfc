// ddprun/c/c_base.h: errors, and what arguments are in C++.

#include "worker_sdk/c/c_handles.h"

#include <algorithm>
#include <string_view>

#include "worker_sdk/base/system_limits.h"

namespace ddprun::worker_sdk {
namespace {

static_assert(kGrows<ddprun_buffer> && kGrows<ddprun_error_info>);
static_assert(std::size(kDataTypes) == DDPRUN_C128 + 1, "c_base.h lacks a type");

// Fixed, so that an error can be told when there is no memory.
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

// Whose status it is. A program's function may return it to those that wait for an exception.
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
  const bool known = status > DDPRUN_OK && status <= DDPRUN_STATE_LOST;
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
