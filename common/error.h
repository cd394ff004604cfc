#pragma once
// Every way ddprun can fail, and the type that carries a failure to the code that must handle it.
// The worker SDK's public boundary throws ddprun::Error (worker_sdk/include/ddprun/error.h)
// instead.

#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <variant>

namespace ddprun {

enum class Errc {
  kFrameTooLarge = 1,  // A peer announced a frame above its limit.
  kPeerSilent,         // A peer sent nothing for longer than its deadline.
  kBadMessage,         // Bytes from outside that break the protocol.
  kBadToken,           // The peer does not know the run's token, or we do not.
  kBadOption,          // The user asked for something that cannot be.
  kNotFound,           // A file, program or host that is not there.
};

const std::error_category& error_category() noexcept;
std::error_code make_error_code(Errc code) noexcept;

// `code` is for programs, `context` for people: what we were doing, to what and with what.
struct Failure {
  std::error_code code;
  std::string context;
};

// The calling thread's errno as a Failure.
Failure errno_failure(std::string context);

// "reading a frame of 2147483647 bytes: frame too large"
std::string to_string(const Failure& failure);

[[noreturn]] void throw_failure(const Failure& failure);  // As std::system_error.

// A value, or the Failure for which there is none. Result<void> has no value: it succeeded or not.
template <class T>
class [[nodiscard]] Result {
  struct Nothing {};
  using Value = std::conditional_t<std::is_void_v<T>, Nothing, T>;

 public:
  using value_type = T;

  Result()
    requires std::is_default_constructible_v<Value>
  = default;
  Result(Failure failure) : state_(std::in_place_index<1>, std::move(failure)) {}
  template <class From>
    requires(!std::is_void_v<T> && std::is_convertible_v<From &&, Value> &&
             !std::is_same_v<std::remove_cvref_t<From>, Result> &&
             !std::is_same_v<std::remove_cvref_t<From>, Failure>)
  Result(From&& value) : state_(std::in_place_index<0>, std::forward<From>(value)) {}

  bool has_value() const { return state_.index() == 0; }
  bool has_error() const { return !has_value(); }
  explicit operator bool() const { return has_value(); }

  // Only of a Result that has a value.
  Value& operator*() & { return *std::get_if<0>(&state_); }
  const Value& operator*() const& { return *std::get_if<0>(&state_); }
  Value&& operator*() && { return std::move(*std::get_if<0>(&state_)); }
  Value* operator->() { return std::get_if<0>(&state_); }
  const Value* operator->() const { return std::get_if<0>(&state_); }

  // The failure; an empty one if there is a value.
  Failure error() const { return has_error() ? *std::get_if<1>(&state_) : Failure{}; }

  // Throws if there is none. Only tests and main() call it.
  Value& value() & { return checked(), **this; }
  const Value& value() const& { return checked(), **this; }
  Value&& value() && { return checked(), std::move(**this); }

 private:
  void checked() const {
    if (has_error()) throw_failure(error());
  }

  std::variant<Value, Failure> state_;
};

}  // namespace ddprun

template <>
struct std::is_error_code_enum<ddprun::Errc> : std::true_type {};
