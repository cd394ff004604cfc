#pragma once
// Collectives over TCP between hosts, by libgloo: a full mesh of connections, addresses through the
// store.
//
// Gloo checks neither what its peers call nor who they are, and a message of the wrong size ends
// the connection. So every operation gets a tag made of its number and signature: ranks that
// disagree never match. After a second they probe for that (mismatch_probe.h), or reach the
// deadline; and the statements they then leave in the store (diagnosis.h) say who called what. Of
// Gloo only its messages between two ranks are used.
//
// Reductions are ours, from Gloo's messages: every rank gets all sources
// of its part of the array, reduces them in the order of ranks, and sends the result to all. So the
// bits are those of shm, f16 and bf16 are rounded once, and as few bytes travel as in a ring, in
// two steps.

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ddprun/store.h"
#include "worker_sdk/base/round_fence.h"
#include "worker_sdk/gloo/mismatch_probe.h"
#include "worker_sdk/gloo/gloo_mesh.h"
#include "worker_sdk/gloo/gloo_transfers.h"
#include "worker_sdk/transport/backend.h"
#include "worker_sdk/transport/diagnosis.h"

namespace gloo {
class Context;
}

namespace ddprun::worker_sdk {

// The text of the Error of a rank one of whose peers has not been able to connect: that peer's own
// Error has the reason.
constexpr const char* kPeerCannotConnect = "a peer cannot connect";

struct GlooOptions {
  std::string address;                // Of this host's end of the connections: numeric.
  std::string interface;              // If not empty, used instead.
  Store* store = nullptr;             // Needed while the constructor runs.
  std::string prefix;                 // Of this group's keys in it.
  Clock::time_point deadline{};       // Of the constructor.
  std::shared_ptr<RoundFence> fence;  // Ends the constructor, too, if there is one.
  // Opens the same store again, for a diagnosis. May throw or return null.
  std::function<std::shared_ptr<Store>()> reopen_store;
  bool may_probe = true;  // That the peers call the same. False: only one thread may use the store.
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

  const std::vector<int>& everybody() const { return everybody_; }
  // Among `ranks`, rising, of which this one is one; the others do not take part.
  void all_reduce_among(const Call& call, const std::vector<int>& ranks, Buffer inout, ReduceOp op);
  void broadcast_among(const Call& call, const std::vector<int>& ranks, Buffer inout, int root);
  void barrier_among(const Call& call, const std::vector<int>& ranks);

  // For a user of this backend that begins with a part of its own.
  void begin(const Call& call);
  // For a user of this backend whose own part of `call` has failed: tells the peers, asks what they
  // know, and throws who is to blame. From any thread, also while a call is under way; what was
  // said first counts.
  [[noreturn]] void fail(const Call& call, const Statement& known);
  // The same without a question: for who knows the reason already.
  void give_up(const Statement& known) noexcept;
  bool has_failed() const { return failed_.load(); }
  // The rank whose connection ended first; -1: none has. From any thread.
  int first_lost() const { return watch_->first_lost(); }
  // Called first of all in a failure, before any peer is asked.
  void on_failure(std::function<void(const Statement&)> action) { on_failure_ = std::move(action); }
  // Looks whether all ranks have called the same while the result lives: for a user of this backend
  // that waits elsewhere. Where they have not, calls under way here end.
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
  Diagnosis ask_the_others(const Statement& mine, bool is_first);
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
  std::vector<int> everybody_;
  int thread_ = 0;  // Gloo's own, which reads and writes its connections; 0: not found.
  std::shared_ptr<gloo::Context> context_;
  std::vector<GlooConnection> connections_;  // By rank.
  std::unique_ptr<GlooWatch> watch_;
  std::unique_ptr<MismatchProbe> probe_;            // May be null.
  std::vector<std::uint32_t> sent_, received_;  // Messages so far, by peer.
  std::unique_ptr<std::byte[]> scratch_;        // For the sources of reductions.
  std::size_t scratch_bytes_ = 0;
  std::function<void(const Statement&)> on_failure_;
  Clock::time_point begun_{};         // The last call.
  std::atomic<bool> is_late_{false};  // A connection had ended before it.
  std::atomic<bool> failed_{false};
  std::atomic<bool> aborted_{false};
  std::atomic<bool> dissolved_{false};
  LostPeer lost_;
};

}  // namespace ddprun::worker_sdk
