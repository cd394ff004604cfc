#pragma once
// What the worker SDK throws.

#include <chrono>
#include <string>
#include <system_error>

namespace ddprun {

/// Why an operation failed; Error::code() compares equal to one of these.
enum class ErrorKind {
  bad_argument = 1,  ///< The caller broke the contract of the function; nothing was communicated.
  bad_environment,   ///< RANK, WORLD_SIZE, MASTER_ADDR... missing or contradictory.
  unreachable,       ///< The store or a peer cannot be connected to.
  timed_out,         ///< A deadline passed; the text says who had not arrived.
  peer_lost,         ///< A peer closed its connection or died.
  mismatch,     ///< Ranks disagree: about shapes, counts, data types or the order of operations.
  aborted,      ///< ProcessGroup::abort() was called, or an earlier operation had failed.
  unsupported,  ///< This backend cannot do that.
  system,       ///< The operating system refused.
  corrupt,      ///< A file is torn or damaged.
};

const std::error_category& sdk_category() noexcept;
std::error_code make_error_code(ErrorKind kind) noexcept;

/// Every failure of the SDK. what() is one sentence that names rank, host and operation; the fields
/// repeat it for programs.
///
/// Once a collective has thrown anything but bad_argument, its group is dead: every later call
/// throws `aborted`. Exit with a non-zero status, and the launcher starts the next round.
class Error : public std::system_error {
 public:
  struct Where {
    int rank = -1;                        ///< The rank that noticed; -1 before ranks are known.
    std::string host = {};                ///< Where it runs.
    std::string operation = {};           ///< "all_reduce #17", "connecting to the store", ...
    int peer = -1;                        ///< The rank that is to blame; -1 if unknown.
    std::chrono::milliseconds waited{0};  ///< How long the operation had been under way.
  };

  Error(ErrorKind kind, Where where, const std::string& text);

  ErrorKind kind() const noexcept { return static_cast<ErrorKind>(code().value()); }
  const Where& where() const noexcept { return where_; }
  const std::string& text() const noexcept {
    return text_;
  }  ///< what() without the fields of where().

 private:
  Where where_;
  std::string text_;
};

}  // namespace ddprun

template <>
struct std::is_error_code_enum<ddprun::ErrorKind> : std::true_type {};
