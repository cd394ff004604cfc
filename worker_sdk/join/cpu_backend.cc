#include "worker_sdk/join/cpu_backend.h"

#include <algorithm>

#include "worker_sdk/transport/reduce.h"

namespace ddprun::worker_sdk {
namespace {

// Whether operations of this kind combine shared memory and Gloo.
bool shares(OpKind kind) {
  return kind == OpKind::kAllReduce || kind == OpKind::kBroadcast || kind == OpKind::kBarrier;
}

// What this rank states to the other hosts about a failure inside its host. A rank that only waited
// too long names no suspect: the rank that it waited for may itself have waited for another host.
Statement statement_of(const Call& call, const Error& error) {
  Statement mine{.what = call.what, .number = call.number};
  switch (error.kind()) {
    case ErrorKind::aborted: mine.cause = Cause::kAborted; break;
    case ErrorKind::timed_out: mine.cause = Cause::kTimedOut; break;
    default: mine.suspect = error.where().peer;
  }
  return mine;
}

}  // namespace

CpuBackend::CpuBackend(std::shared_ptr<const Roster> roster, std::vector<std::vector<int>> hosts,
                       std::unique_ptr<ShmBackend> shm, std::unique_ptr<GlooBackend> gloo)
    : roster_(std::move(roster)),
      hosts_(std::move(hosts)),
      shm_(std::move(shm)),
      gloo_(std::move(gloo)) {
  const auto fewest =
      std::min_element(hosts_.begin(), hosts_.end(),
                       [](const auto& a, const auto& b) { return a.size() < b.size(); });
  owners_ = static_cast<int>(fewest->size());
  // Ends the waits of this host's team at once, while this rank still queries the other hosts.
  gloo_->on_failure([this](const Statement& mine) {
    const ErrorKind kind =
        mine.cause == Cause::kTimedOut ? ErrorKind::timed_out : ErrorKind::peer_lost;
    if (mine.cause == Cause::kAborted) return shm_->abort();
    shm_->team().give_up(Error(kind, {.peer = mine.suspect}, ""));
  });
}

template <class Operation>
void CpuBackend::guarded(const Call& call, Operation operation) {
  gloo_->begin(call);
  try {
    operation();
  } catch (const Error& error) {
    if (gloo_->has_failed()) throw;
    // Only two ranks of this host disagree about a message. The others cannot know more, so they
    // are not queried.
    if (is_message(call.what.kind) && error.kind() == ErrorKind::mismatch) {
      gloo_->give_up(statement_of(call, error));
      throw;
    }
    gloo_->fail(call, statement_of(call, error));
  }
}

void CpuBackend::carry_out(const Call& call, const Arrays& arrays) {
  guarded(call, [&] {
    if (shares(call.what.kind)) {
      // The ranks that wait in memory wait for one that waits for Gloo, and are notified if it
      // fails.
      const auto here = gloo_->probe(call);
      if (call.what.kind == OpKind::kAllReduce) return all_reduce(call, arrays.out);
      if (call.what.kind == OpKind::kBroadcast) return broadcast(call, arrays.out);
      return barrier(call);
    }
    const bool within_host = is_message(call.what.kind) && is_here(call.what.rank);
    within_host ? shm_->carry_out(call, arrays) : gloo_->carry_out(call, arrays);
  });
}

void CpuBackend::all_reduce(const Call& call, Buffer inout) {
  const int owners = inout.bytes() <= kSmallBytes ? 1 : owners_;
  const bool avg = call.what.op == ReduceOp::avg;
  // An average of half types divides before it rounds, lest the sum overflow.
  const bool divide_first = avg && is_of(inout.type, TypeClass::half);
  const ReduceOp between = avg ? ReduceOp::sum : call.what.op;
  shm_->reduce_to_owners(call, inout, owners, divide_first ? ReduceOp::avg : between,
                         roster_->size());
  const int me = shm_->team().rank();
  if (me < owners) {
    const auto slice = ShmBackend::slice_of(me, owners, inout.count);
    const Buffer mine{static_cast<std::byte*>(inout.data) + slice.begin * size_of(inout.type),
                      slice.count, inout.type};
    std::vector<int> peers;
    for (const auto& host : hosts_) peers.push_back(host[static_cast<std::size_t>(me)]);
    std::sort(peers.begin(), peers.end());
    gloo_->all_reduce_among(call, peers, mine, between);
    if (avg && !divide_first) divide(mine.type, mine.data, mine.count, roster_->size());
  }
  shm_->gather_from_owners(call, inout, owners);
}

void CpuBackend::broadcast(const Call& call, Buffer inout) {
  const int root = call.what.rank;
  std::vector<int> first;  // The first rank of each host; on the root's host, the root.
  for (const auto& host : hosts_) {
    const bool of_root = std::find(host.begin(), host.end(), root) != host.end();
    first.push_back(of_root ? root : host.front());
  }
  const int here = is_here(root) ? shm_->team().team_rank(root) : 0;
  if (shm_->team().rank() == here) gloo_->broadcast_among(call, first, inout, root);
  shm_->broadcast_from(call, inout, here);
}

void CpuBackend::barrier(const Call& call) {
  shm_->carry_out(call, {});
  if (shm_->team().rank() == 0) {
    std::vector<int> first;
    for (const auto& host : hosts_) first.push_back(host.front());
    gloo_->barrier_among(call, first);
  }
  shm_->carry_out(call, {});
}

std::shared_ptr<void> CpuBackend::allocate(const Call& call, std::size_t bytes) {
  std::shared_ptr<void> memory;
  guarded(call, [&] { memory = shm_->allocate(call, bytes); });
  return memory;
}

void CpuBackend::lose(int rank, const std::string& why) noexcept {
  shm_->lose(rank, why);
  gloo_->lose(rank, why);
}

void CpuBackend::abort() noexcept {
  shm_->abort();
  gloo_->abort();
}

void CpuBackend::dissolve() noexcept {
  shm_->dissolve();
  gloo_->dissolve();
}

}  // namespace ddprun::worker_sdk
