#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {
namespace {

std::string arguments(const Signature& what) {
  const auto elements = [&] {
    return std::string(ddprun::name_of(what.type)) + " x " + std::to_string(what.count);
  };
  const char* const unequal = what.parts == 0 ? "" : " in unequal parts";
  switch (what.kind) {
    case OpKind::kAllReduce: return elements() + ", " + ddprun::name_of(what.op);
    case OpKind::kReduceScatter: return elements() + unequal + ", " + ddprun::name_of(what.op);
    case OpKind::kReduce:
      return elements() + ", " + ddprun::name_of(what.op) + ", root " + std::to_string(what.rank);
    case OpKind::kBroadcast:
    case OpKind::kGather:
    case OpKind::kScatter: return elements() + ", root " + std::to_string(what.rank);
    case OpKind::kAllGather: return elements() + unequal;
    case OpKind::kAllToAll:
      return what.parts == kOwnParts ? std::string(ddprun::name_of(what.type)) + " in unequal parts"
                                     : elements();
    case OpKind::kSend: return elements() + ", to " + std::to_string(what.rank);
    case OpKind::kRecv: return elements() + ", from " + std::to_string(what.rank);
    case OpKind::kAllocate: return std::to_string(what.count) + " bytes";
    case OpKind::kBarrier: break;
  }
  return {};
}

std::string describe(const Signature& what, const std::string& number, int tag = -1) {
  const std::string inside =
      arguments(what) + (tag < 0 ? std::string() : ", tag " + std::to_string(tag));
  return name_of(what.kind) + number + (inside.empty() ? "" : " (" + inside + ")");
}

}  // namespace

const char* name_of(OpKind kind) noexcept {
  switch (kind) {
    case OpKind::kAllReduce: return "all_reduce";
    case OpKind::kBroadcast: return "broadcast";
    case OpKind::kAllGather: return "all_gather";
    case OpKind::kSend: return "send";
    case OpKind::kRecv: return "recv";
    case OpKind::kBarrier: return "barrier";
    case OpKind::kAllocate: return "allocate";
    case OpKind::kReduceScatter: return "reduce_scatter";
    case OpKind::kAllToAll: return "all_to_all";
    case OpKind::kGather: return "gather";
    case OpKind::kScatter: return "scatter";
    case OpKind::kReduce: return "reduce";
  }
  return "unknown operation";
}

std::string to_string(const Signature& what) { return describe(what, ""); }

std::string to_string(const Call& call) {
  return describe(call.what, " #" + std::to_string(call.number), call.tag);
}

int Roster::from_shown(int r) const {
  if (shown_ranks.empty()) return r;
  const auto at = std::find(shown_ranks.begin(), shown_ranks.end(), r);
  return at == shown_ranks.end() ? -1 : static_cast<int>(at - shown_ranks.begin());
}

int Roster::from_job(int job_rank) const {
  if (job_ranks.empty()) return job_rank < size() ? job_rank : -1;
  const auto at = std::find(job_ranks.begin(), job_ranks.end(), job_rank);
  return at == job_ranks.end() ? -1 : static_cast<int>(at - job_ranks.begin());
}

int Roster::other_name(int r) const {
  const bool is_shown = job_ranks.empty() || (!shown_ranks.empty() && of_job(r) == shown(r));
  return is_shown ? -1 : of_job(r);
}

Error::Where Roster::here(std::string operation) const {
  return {.rank = shown(rank),
          .host = hosts.at(static_cast<std::size_t>(rank)),
          .operation = std::move(operation),
          .job_rank = other_name(rank)};
}

std::string Roster::number(int peer) const {
  const int other = other_name(peer);
  const std::string of_job = other < 0 ? "" : " (" + std::to_string(other) + " of the job)";
  return std::to_string(shown(peer)) + of_job;
}

std::string Roster::name(int peer) const {
  return "rank " + number(peer) + " on " + hosts.at(static_cast<std::size_t>(peer));
}

std::string Roster::names(const std::vector<int>& peers) const {
  if (peers.size() == 1) return name(peers[0]);
  std::string result = "ranks ";
  for (const int peer : peers) {
    if (peer != peers.front()) result += ", ";
    const int other = other_name(peer);
    result += std::to_string(shown(peer)) + " (" +
              (other < 0 ? "" : std::to_string(other) + " of the job; ") +
              hosts.at(static_cast<std::size_t>(peer)) + ")";
  }
  return result;
}

Error failure(const Roster& roster, const Call& call, ErrorKind kind, int peer,
              const std::string& text, std::vector<int> missing) {
  const auto waited =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - call.start);
  Call named = call;
  if (is_message(call.what.kind)) named.what.rank = roster.shown(call.what.rank);
  for (int& r : missing) r = roster.shown(r);
  Error::Where where = roster.here(to_string(named));
  where.peer = roster.shown(peer);
  where.waited = waited;
  where.missing = std::move(missing);
  return Error(kind, std::move(where), text);
}

}  // namespace ddprun::worker_sdk
