#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {
namespace {

std::string arguments(const Signature& what) {
  const auto elements = [&] {
    return std::string(ddprun::name_of(what.type)) + " x " + std::to_string(what.count);
  };
  switch (what.kind) {
    case OpKind::kAllReduce: return elements() + ", " + ddprun::name_of(what.op);
    case OpKind::kReduceScatter: return elements() + ", " + ddprun::name_of(what.op);
    case OpKind::kBroadcast:
    case OpKind::kGather:
    case OpKind::kScatter: return elements() + ", root " + std::to_string(what.rank);
    case OpKind::kAllGather:
    case OpKind::kAllToAll: return elements();
    case OpKind::kSend: return elements() + ", to " + std::to_string(what.rank);
    case OpKind::kRecv: return elements() + ", from " + std::to_string(what.rank);
    case OpKind::kAllocate: return std::to_string(what.count) + " bytes";
    case OpKind::kBarrier: break;
  }
  return {};
}

std::string describe(const Signature& what, const std::string& number) {
  const std::string inside = arguments(what);
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
  }
  return "unknown operation";
}

std::string to_string(const Signature& what) { return describe(what, ""); }

std::string to_string(const Call& call) {
  return describe(call.what, " #" + std::to_string(call.number));
}

int Roster::from_job(int job_rank) const {
  if (job_ranks.empty()) return job_rank < size() ? job_rank : -1;
  const auto at = std::find(job_ranks.begin(), job_ranks.end(), job_rank);
  return at == job_ranks.end() ? -1 : static_cast<int>(at - job_ranks.begin());
}

std::string Roster::name(int peer) const {
  const auto at = static_cast<std::size_t>(peer);
  const std::string of_job =
      job_ranks.empty() ? "" : " (" + std::to_string(job_ranks.at(at)) + " of the job)";
  return "rank " + std::to_string(peer) + of_job + " on " + hosts.at(at);
}

std::string Roster::names(const std::vector<int>& peers) const {
  if (peers.size() == 1) return name(peers[0]);
  std::string result = "ranks ";
  for (const int peer : peers) {
    if (peer != peers.front()) result += ", ";
    result += std::to_string(peer) + " (" + hosts.at(static_cast<std::size_t>(peer)) + ")";
  }
  return result;
}

Error failure(const Roster& roster, const Call& call, ErrorKind kind, int peer,
              const std::string& text) {
  const auto waited =
      std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - call.start);
  return Error(kind,
               {.rank = roster.rank,
                .host = roster.hosts.at(static_cast<std::size_t>(roster.rank)),
                .operation = to_string(call),
                .peer = peer,
                .waited = waited},
               text);
}

}  // namespace ddprun::worker_sdk
