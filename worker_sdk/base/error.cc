#include "ddprun/error.h"

#include "ddprun/types.h"

namespace ddprun {
namespace {

class SdkCategory : public std::error_category {
 public:
  const char* name() const noexcept override { return "ddprun.worker_sdk"; }

  std::string message(int value) const override {
    switch (static_cast<ErrorKind>(value)) {
      case ErrorKind::bad_argument: return "bad argument";
      case ErrorKind::bad_environment: return "bad environment";
      case ErrorKind::unreachable: return "unreachable";
      case ErrorKind::timed_out: return "timed out";
      case ErrorKind::peer_lost: return "peer lost";
      case ErrorKind::mismatch: return "ranks disagree";
      case ErrorKind::aborted: return "aborted";
      case ErrorKind::unsupported: return "unsupported";
      case ErrorKind::system: return "refused by the system";
      case ErrorKind::corrupt: return "torn or damaged";
      case ErrorKind::membership_changed: return "membership changed";
      case ErrorKind::state_lost: return "state lost";
      case ErrorKind::wrong_result: return "wrong result";
    }
    return "unknown error";
  }
};

// "rank 1 on node-7: all_reduce #17 (f32 x 1000, sum): <text> (after 503 ms)"; of a split group
// "rank 1 (5 of the job) on node-7: ..."
std::string sentence(const Error::Where& where, const std::string& text) {
  std::string result;
  if (where.rank >= 0) {
    result += "rank " + std::to_string(where.rank);
    if (where.job_rank >= 0) result += " (" + std::to_string(where.job_rank) + " of the job)";
    if (!where.host.empty()) result += " on " + where.host;
    result += ": ";
  }
  if (!where.operation.empty()) result += where.operation + ": ";
  result += text;
  if (where.waited.count() > 0) {
    result += " (after " + std::to_string(where.waited.count()) + " ms)";
  }
  return result;
}

// The text of an error that this one quotes ends with what std::system_error has added to it, and
// that class adds the same again behind ours.
std::string without_kind(std::string text, ErrorKind kind) {
  const std::string added = ": " + sdk_category().message(static_cast<int>(kind));
  while (text.size() > added.size() && text.ends_with(added)) {
    text.resize(text.size() - added.size());
  }
  return text;
}

}  // namespace

const std::error_category& sdk_category() noexcept {
  static const SdkCategory category;
  return category;
}

std::error_code make_error_code(ErrorKind kind) noexcept {
  return {static_cast<int>(kind), sdk_category()};
}

Error::Error(ErrorKind kind, Where where, const std::string& text)
    : std::system_error(make_error_code(kind), sentence(where, without_kind(text, kind))),
      where_(std::move(where)),
      text_(without_kind(text, kind)) {}

// Each row of the table is at the number of its type.
static_assert([] {
  for (std::size_t i = 0; i < std::size(kDataTypes); ++i) {
    if (static_cast<std::size_t>(kDataTypes[i].type) != i) return false;
  }
  return true;
}());

const char* name_of(ReduceOp op) noexcept {
  switch (op) {
    case ReduceOp::sum: return "sum";
    case ReduceOp::avg: return "avg";
    case ReduceOp::min: return "min";
    case ReduceOp::max: return "max";
    case ReduceOp::prod: return "prod";
    case ReduceOp::band: return "band";
    case ReduceOp::bor: return "bor";
    case ReduceOp::bxor: return "bxor";
    case ReduceOp::premul_sum: return "premul_sum";
  }
  return "unknown reduction";
}

}  // namespace ddprun
