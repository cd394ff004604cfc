#pragma once
// Every way ddprun can fail, and the type that carries a failure to whoever must handle it. The
// worker SDK's public boundary throws ddprun::Error (worker_sdk/include/ddprun/error.h) instead.

#include <boost/system/error_code.hpp>
#include <boost/system/result.hpp>
#include <string>

namespace ddprun {

enum class Errc {
  kFrameTooLarge = 1,  // A peer announced a frame above its limit.
  kPeerSilent,         // A peer sent nothing for longer than its deadline.
  kBadMessage,         // Bytes from outside that are not what the protocol says.
  kBadToken,           // The peer does not know the run's token, or we do not.
  kBadOption,          // The user asked for something that cannot be.
  kNotFound,           // A file, program or host that is not there.
};

const boost::system::error_category& error_category() noexcept;
boost::system::error_code make_error_code(Errc code) noexcept;

// `code` is for programs, `context` for people: what we were doing, to whom, with what.
struct Failure {
  boost::system::error_code code;
  std::string context;
};

// The calling thread's errno as a Failure.
Failure errno_failure(std::string context);

// "reading a frame of 2147483647 bytes: frame too large"
std::string to_string(const Failure& failure);

template <class T>
using Result = boost::system::result<T, Failure>;

// What Result<T>::value() throws: std::system_error. Only tests and main() call value().
[[noreturn]] void throw_exception_from_error(const Failure& failure,
                                             const boost::source_location& where);

}  // namespace ddprun

template <>
struct boost::system::is_error_code_enum<ddprun::Errc> : std::true_type {};
