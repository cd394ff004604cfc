#pragma once
// Refusals of the system, as Errors that name the call and the limit: threads, descriptors, memory.
// Every thread of the SDK is started here, because nothing but an Error may leave the SDK. Does not
// retry.

#include <exception>
#include <string>
#include <thread>
#include <utility>

#include "common/system/signals.h"
#include "ddprun/error.h"

namespace ddprun::worker_sdk {

// "eventfd: Too many open files; this process may open 256 (ulimit -n)": `call` and the reason for
// errno `error`.
std::string refusal(const std::string& call, int error);

inline Error refused(Error::Where where, const std::string& call, int error) {
  return {ErrorKind::system, std::move(where), refusal(call, error)};
}

// Whether this process or machine lacks a descriptor, memory or buffers: another peer or address
// would not help.
bool is_shortage(int error) noexcept;

// An Error stays as it is; any other exception becomes Error(system) at `where`.
Error as_error(const std::exception& failure, Error::Where where);

// own_thread(), which throws Error(system) at `where` if the system has no thread left.
template <class Run>
auto start_thread(const char* name, const Error::Where& where, Run&& run) {
  try {
    return own_thread(name, std::forward<Run>(run));
  } catch (const std::system_error& failure) {
    throw refused(where, std::string("starting the thread ") + name, failure.code().value());
  }
}

}  // namespace ddprun::worker_sdk
