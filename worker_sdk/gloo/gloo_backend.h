#pragma once
// Collectives over TCP between hosts, by libgloo: a full mesh of connections, addresses through the
// store.
//
// Gloo checks neither what its peers call nor which ranks they are, and a message of the wrong size
// ends the connection. So every operation gets a tag made of its number and signature: ranks that
// disagree never match. After a second they probe for that (mismatch_probe.h), or reach the
// deadline. The statements that they then leave in the store (diagnosis.h) name each rank's call.
// Of Gloo only its messages between two ranks are used.
//
// Reductions are ours, from Gloo's messages: every rank gets all sources of its part of the array,
// reduces them in the order of ranks, and sends the result to all. So the bits are those of shm,
// f16 and bf16 are rounded once, and as few bytes travel as in a ring, in two steps.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/ports.h"
#include "ddprun/store.h"
#include "worker_sdk/base/round_fence.h"
#include "worker_sdk/gloo/gloo_mesh.h"
#include "worker_sdk/gloo/gloo_transfers.h"
#include "worker_sdk/gloo/mismatch_probe.h"
#include "worker_sdk/transport/backend.h"
#include "worker_sdk/transport/diagnosis.h"

namespace gloo {
class Context;
}

namespace ddprun::worker_sdk {

// The text of the Error of a rank if one of its peers could not connect; that peer's own Error has
// the reason.
constexpr const char* kPeerCannotConnect = "a peer cannot connect";

struct GlooOptions {
  std::string address;                // Numeric address of this host's end of the connections.
  std::string interface;              // If not empty, used instead.
  PortRange ports;                    // For this rank's ends; any: the kernel chooses.
  RelayPlace relay;                   // For ranks of other nodes that cannot be reached.
  std::vector<std::string> networks;  // By rank, network_domain(); empty: not known.
  Store* store = nullptr;             // Needed while the constructor runs.
  std::string prefix;                 // Prefix of this group's keys in the store.
  Clock::time_point deadline{};       // For the constructor.
  std::shared_ptr<RoundFence> fence;  // Ends the constructor, too, if there is one.
  // Opens the same store again, for a diagnosis. May throw or return null.
  std::function<std::shared_ptr<Store>()> reopen_store;
  bool may_probe = true;  // Probe for mismatches? False if only one thread may use the store.
};

class GlooBackend : public HostBackend {
 public:
  GlooBackend(std::shared_ptr<const Roster> roster, const GlooOptions& options);
  ~GlooBackend() override;

  const char* name() const noexcept override { return "gloo"; }
  void carry_out(const Call& call, const Arrays& arrays) override;
  std::shared_ptr<void> allocate(const Call& call, std::size_t bytes) override;
  std::chrono::nanoseconds cpu_time() const override;
  void abort() noexcept override;
  void dissolve() noexcept override;
  void lose(int rank, const std::string& why) noexcept override;

  const std::vector<int>& all_ranks() const { return all_ranks_; }
  // Among `ranks`, rising, of which this one is one; the others do not take part.
  void all_reduce_among(const Call& call, const std::vector<int>& ranks, Buffer inout, ReduceOp op);
  void broadcast_among(const Call& call, const std::vector<int>& ranks, Buffer inout, int root);
  void barrier_among(const Call& call, const std::vector<int>& ranks);

  // For a user of this backend that does the first part of `call` itself.
  void begin(const Call& call);
  // For a user of this backend, if its own part of `call` has failed: notifies the peers, queries
  // their statements, and throws an Error that names the culprit. From any thread, also during a
  // call; the first statement counts.
  [[noreturn]] void fail(const Call& call, const Statement& known);
  // Like fail(), but queries nothing: the reason is known already.
  void give_up(const Statement& known) noexcept;
  bool has_failed() const { return failed_.load(); }
  // The rank of the connection that ended first; -1: none. From any thread.
  int first_lost() const { return watch_->first_lost(); }
  // `action` is called first in a failure, before any peer is queried.
  void on_failure(std::function<void(const Statement&)> action) { on_failure_ = std::move(action); }
  // While the result lives, probes whether all ranks have made the same call: for a user of this
  // backend that waits elsewhere. If they have not, calls in progress here end.
  [[nodiscard]] MismatchProbe::InCall probe(const Call& call) { return {probe_.get(), call}; }

 private:
  friend Verbs;
  Verb all_reduce, reduce, reduce_scatter, broadcast, all_gather, all_to_all, gather, scatter;
  Verb send, recv, barrier;

  void connect(const GlooOptions& options);
  void refuse_peers(const GlooOptions& options) const noexcept;
  [[noreturn]] void follow_agent(const Call& call);
  void guarded(const Call& call, const std::function<void()>& operation);
  Statement statement(const Call& call, const std::string& what_gloo_reported) const;
  std::shared_ptr<Store> leave_statement(const Statement& mine, bool is_first);
  Diagnosis query_others(const Statement& mine, bool is_first);
  bool is_clear(const Statement& mine, const std::map<int, Statement>& others,
                Clock::time_point since) const;
  std::byte* scratch(std::size_t bytes);
  GlooTransfers transfers(std::uint64_t slot, const Call& call) {
    return {*context_, *watch_, slot, call.deadline};
  }
  void spread(const Call& call, const std::vector<int>& ranks, Buffer inout, int root);
  void meet(const Call& call, const std::vector<int>& ranks);
  void reduce_for_all(const Call& call, const std::vector<int>& ranks, Buffer inout, ReduceOp op);
  void exchange_counts(const Call& call, const Arrays& arrays);
  void reduce_whole(const Call& call, const std::vector<int>& ranks, Buffer inout, ReduceOp op);
  void reduce_in_windows(const Call& call, const std::vector<int>& ranks, Buffer inout,
                         ReduceOp op);

  std::shared_ptr<const Roster> roster_;
  std::function<std::shared_ptr<Store>()> reopen_store_;
  const std::string prefix_;
  std::vector<int> all_ranks_;
  int thread_ = 0;  // Gloo's own, which reads and writes its connections; 0: not found.
  std::shared_ptr<gloo::Context> context_;
  std::vector<GlooConnection> connections_;  // By rank.
  std::unique_ptr<GlooWatch> watch_;
  std::unique_ptr<MismatchProbe> probe_;        // May be null.
  std::vector<std::uint32_t> sent_, received_;  // Messages so far, by peer.
  std::unique_ptr<std::byte[]> scratch_;        // Buffer for the sources of reductions.
  std::size_t scratch_bytes_ = 0;
  std::function<void(const Statement&)> on_failure_;
  Clock::time_point begun_{};         // When the last call began.
  std::atomic<bool> is_late_{false};  // A connection had ended before it.
  std::atomic<bool> failed_{false};
  std::atomic<bool> aborted_{false};
  std::atomic<bool> dissolved_{false};
  LostPeer lost_;
};

}  // namespace ddprun::worker_sdk
