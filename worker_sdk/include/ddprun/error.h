#pragma once
// The exceptions of the worker SDK.

#include <chrono>
#include <string>
#include <system_error>
#include <vector>

namespace ddprun {

/// Why an operation failed; Error::code() compares equal to one of these.
enum class ErrorKind {
  bad_argument = 1,  ///< The call violates the function's contract; nothing was communicated.
  bad_environment,   ///< RANK, WORLD_SIZE, MASTER_ADDR... missing or contradictory.
  unreachable,       ///< Cannot connect to the store or a peer.
  timed_out,         ///< A deadline passed; the text names the missing ranks.
  peer_lost,         ///< A peer closed its connection or died.
  mismatch,     ///< Ranks disagree: about shapes, counts, data types or the order of operations.
  aborted,      ///< ProcessGroup::abort() was called, or an earlier operation failed.
  unsupported,  ///< The backend does not support the operation.
  system,       ///< A system call failed.
  corrupt,      ///< A file, or state that was sent, is torn or damaged.
  membership_changed,  ///< The round of an elastic job is over (ddprun/elastic/job.h).
  state_lost,          ///< No rank of an elastic job has some part of sharded state any more.
  wrong_result,        ///< This rank, or the one that is named, has computed something wrong.
};

const std::error_category& sdk_category() noexcept;
std::error_code make_error_code(ErrorKind kind) noexcept;

/// Every failure of the SDK. what() is one sentence that names rank, host and operation; where()
/// gives the same to programs.
///
/// After a collective has thrown any error except bad_argument and unsupported, its group is
/// unusable: every later call throws `aborted`. If the program exits with a non-zero status, the
/// launcher starts the next round.
class Error : public std::system_error {
 public:
  struct Where {
    int rank = -1;                        ///< The rank that throws; -1 before ranks are known.
    std::string host = {};                ///< The host of that rank.
    std::string operation = {};           ///< "all_reduce #17", "connecting to the store", ...
    int peer = -1;                        ///< The rank that caused it; -1 if unknown.
    std::chrono::milliseconds waited{0};  ///< How long the operation had run.
    std::vector<int> missing = {};        ///< Of timed_out: the ranks that did not call, if known.
    int job_rank = -1;  ///< The job's number of `rank`, if the group is not the whole job.
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
