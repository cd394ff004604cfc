#pragma once
// What a Job is made of: the loop of job.cc, which calls the body, and the rounds of job_round.cc,
// which begin and end beneath it.
//
//   run ──▶ enter a round: seat, group, each rank's standing, state for the ranks that lack it
//     ▲        │
//     │        ▼
//     │     work: between, or the body up to its commit ──▶ all is committed: barrier, return
//     │        │ the fence is raised,          │ the vote of a commit
//     │        │ or an operation has failed    │ is to leave
//     └────────┴── leave the round ◀───────────┘

#include <map>
#include <optional>
#include <ranges>
#include <span>
#include <vector>

#include "common/bundle.h"
#include "ddprun/elastic/gradient_sums.h"
#include "ddprun/elastic/job.h"
#include "ddprun/elastic/sharded.h"
#include "worker_sdk/base/operation.h"
#include "worker_sdk/base/round_fence.h"
#include "worker_sdk/elastic/audit.h"
#include "worker_sdk/elastic/shard_division.h"
#include "worker_sdk/job/job_memory.h"
#include "worker_sdk/job/kept_state.h"
#include "worker_sdk/job/sharded_state.h"
#include "worker_sdk/job/standing.h"
#include "worker_sdk/join/environment.h"
#include "worker_sdk/worker/agent_link.h"
#include "worker_sdk/worker/progress.h"

namespace ddprun::elastic {

struct Step::State {
  class JobInside& job;
  std::int64_t number = 0;
  bool is_repeated = false;
  std::optional<std::int32_t> vote = {};
  std::optional<bool> voted = {};
  bool is_committed = false;
  bool is_counted = false;         // The ballots of all ranks have been.
  int shards = 0;                  // Of which the ranks have divided this step; 0: not yet.
  std::vector<int> auditors = {};  // By shard; -1: it is not audited. None if no shard is.
  double work = 0;                 // Of this rank's shards.
  double audit_work = 0;           // Of those that it computes because they are audited.
  worker_sdk::Clock::time_point began = {};  // The body, or its last attempt.
  std::chrono::nanoseconds spent_before{0};  // In calls of groups, by then.
  std::vector<Pace> measured = {};           // By rank, once all have agreed.
  std::map<int, std::uint64_t> hashes = {};  // Of audited shards that this rank has computed.
  bool is_finite = true;                     // The sum of the gradients, as far as known.
  std::optional<Bundle> captured = {};       // To be written, unless it is written.
  bool is_bundled = false;
};

class JobInside {
 public:
  explicit JobInside(JobOptions options);
  ~JobInside();

  // Defined in job.cc:
  void run(std::int64_t steps, const Job::Body& body);
  void commit(Step::State& step, const std::function<void()>& apply);
  std::int32_t vote(Step::State& step) const;
  bool begin_shard(const Step::State& step, int shard, std::string_view content);
  // Throws `membership_changed` if the round is over: then computing a shard of it is useless.
  void require_round(const Step::State& step);
  bool skips(const Step::State& step, int shard) const;
  // This rank's shards. `weight_of`: the work in each.
  using WeightOf = std::function<double(int shard)>;
  std::ranges::iota_view<int, int> shards(Step::State& step, int shards, const WeightOf& weight_of);
  double weight(const Step::State& step, int shard, double otherwise) const {
    return options_.shard_weight ? options_.shard_weight(step.number, shard) : otherwise;
  }
  // What a reduction at the end of the step carries, to be summed over all ranks, and its result.
  std::vector<std::int64_t> ballot(Step::State& step);
  void count(Step::State& step, std::span<const std::int64_t> sums);
  GradientSums::Result reduce(Step::State& step, GradientSums& sums,
                              std::span<const std::span<float>> gradients,
                              const GradientSums::Call& call);
  void end_shard();

  // Defined in job_audit.cc:
  bool is_audited(const Step::State& step, int shard) const;
  std::vector<int> audits(const Step::State& step) const;
  void audit(Step::State& step, int shard, std::uint64_t hash);

  // Defined in job_bundle.cc:
  void capture(Step::State& step, int shard, std::string_view why, std::uint64_t hash);
  void capture_crashes(bool while_running);

  // Defined in sharded_state.cc:
  Sharded& keep_sharded(std::string name, ShardedOptions options);

  // Defined in job_round.cc:
  void enter();
  void leave();
  // Call this while an exception is handled. Leaves the round if its end is the reason, else throws
  // the exception again.
  void leave_or_throw();
  bool is_elastic() const { return link_ != nullptr; }
  bool is_over() const { return seat_ && seat_->fence->is_raised(); }

  void require_usable(const char* operation) const;
  [[noreturn]] void refuse(const char* operation, const std::string& text) const;

  ProcessGroup& group() { return *group_; }
  int round() const { return seat_ ? seat_->place.round : 0; }
  KeptState& kept() { return kept_; }
  void add_between(std::int64_t every, Job::Between body);
  void resume(std::int64_t step);
  std::int64_t committed() const { return standing_.committed; }
  int rank() const { return rank_; }
  int world_size() const { return world_size_; }
  const JobCounters& counters() const { return counters_; }

 private:
  struct Between {
    std::int64_t every = 1;
    Job::Between body;
  };

  struct Walking {
    std::string report;            // The file for a Walk.
    std::int64_t until = 0;        // The step before which to stop.
    bool goes_on = false;          // Else the first step alone is computed, up to its commit.
    std::optional<Bundle> last;    // Of the step before which to stop; none: the end of run().
    KeptState::Staged state = {};  // What it has.
    std::uint64_t not_finite = 0;  // Elements of kept arrays, at the beginning.
  };
  struct Replay {
    Bundle bundle;
    KeptState::Staged state = {};
    bool is_over = false;  // commit(), or the reduction of a single shard, has ended the step.
    std::unique_ptr<Walking> walking;  // Whole steps are computed, in place of a shard.
  };

  bool work(std::int64_t steps, const Job::Body& body);  // True: there is none left.
  void require_whole() const;
  void require_steps(std::int64_t steps) const;
  void note_nothing_to_do(std::int64_t steps) const;
  bool visit_boundary();
  bool meet_at_end();
  void run_step(const Job::Body& body);
  bool agree_to_leave(Step::State& step);
  void advance_division(const Step::State& step);
  void count_shards(const Step::State& step);
  bool follows_speed() const { return !options_.even_shards; }
  bool is_auditing() const { return per_million_ > 0 && group_->world_size() > 1; }
  std::vector<int> auditors_of(const Step::State& step) const;
  std::vector<int> audited(const Step::State& step) const;
  int owner(const Step::State& step, int shard) const;
  int auditor(const Step::State& step, int shard) const;
  int voter(int shard) const;
  std::uint64_t discrepancy(const Step::State& step);
  void settle_discrepancy(const Step::State& step, std::uint64_t discrepancy);
  std::vector<Dispute> exchange(const Step::State& step, std::vector<std::uint64_t>& votes);
  void require_equal_state(const Step::State& step);
  void decide(const Step::State& step);
  void decide(const Step::State& step, const Dispute& first, const Dispute& again,
              std::uint64_t vote);
  std::string text_of(const Step::State& step, const Dispute& dispute) const;
  std::string name_of(int rank) const;
  [[noreturn]] void accuse(const std::vector<int>& culprits, const std::string& text);
  [[noreturn]] void end_all(const std::string& text);
  [[noreturn]] void end_with(const std::string& text, int culprit);
  [[noreturn]] void refuse_silent(const Step::State& step, int shard, int rank) const;
  [[noreturn]] void run_again(const std::string& why);
  void note_audit(const std::string& text, int printer = 0) const;
  static std::unique_ptr<Replay> replay_of_environment();
  void write_captured(Step::State& step);
  std::string hash_of_replay(const Step::State& step, std::uint64_t hash) const;
  void capture_exception(Step::State& step);
  void capture_lost_work();
  void write_lost_work(const LostWork& lost, int shard);
  void capture_on_request();
  static void capture_crash(int signal);
  bool leaves_crash_to_others() const;
  void capture_audited(const Step::State& step, const Dispute& dispute, std::uint64_t hash,
                       const std::string& why);
  bool claim_bundle(bool may_continue);
  UniqueFd claim_crash(const Bundle& bundle) const;
  Bundle bundle_of(const Step::State* step) const;
  std::string failed_path(const Bundle& bundle) const;
  void write_bundle(Bundle bundle);
  void write_claimed(Bundle bundle);
  void wait_for_bundle();
  void write_regular_bundle();
  using Shards = std::vector<std::vector<std::byte>>;  // Of each sharded state all elements.
  bool write_bundle_at(const std::string& path, Bundle bundle, const Shards& shards);
  void begin_replay();
  void require_kept(const Bundle& bundle) const;
  bool is_walking() const { return replay_ && replay_->walking; }
  void walk(std::int64_t steps, const Job::Body& body);
  void walk_step(const Job::Body& body);
  void note_walk(Walk walk) const;
  void note_failed(Step::State& step);
  [[noreturn]] void end_walk(Step::State& step);
  [[noreturn]] void arrive();
  bool ends_at_reduction(const Step::State& step) const;
  bool ends_at_commit(const Step::State& step) const;
  [[noreturn]] void replay(const Job::Body& body);
  [[noreturn]] void end_replay_here();
  std::ranges::iota_view<int, int> shards_of_replay(const Step::State& step, int shards) const;
  bool report_replay(const Step::State& step, const std::string& found) const;
  std::uint64_t signature_of_options() const;
  worker_sdk::Plan plan_of_seat() const;
  void join();
  void settle_state();
  void begin_memory(const Settlement& settled);
  bool restore_from_memory(std::int64_t above);
  bool save_in_memory();
  Settlement query_all();
  void take_state(const Settlement& settled);
  std::uint64_t signature_of_shards(std::uint64_t seed) const;
  void stage_shards(const ShardVersion& version);
  void add_shard_pieces(std::vector<CheckpointPiece>& pieces);
  void meet_with_shards();  // On return, all ranks have staged their shards.
  void install_shards();
  void begin_shards();
  void refresh_shards();
  void advance_shards();
  void spread_shards();
  ShardRound shard_round(const ShardVersion& version) const;
  void count(const ShardTraffic& traffic);
  void report_resumed();
  bool may_be_the_rounds_end() const;
  void await_seat();
  void note_committed();
  bool has_lost_round() const;
  bool await_end_of_round();
  bool has_been_left();

  const JobOptions options_;
  const std::uint64_t forks_ = worker_sdk::fork_count();
  const std::unique_ptr<Replay> replay_;  // Null: the process is a rank of a job.
  const std::string bundles_;             // The folder for bundles; empty: there is none.
  const std::int64_t bundle_every_;       // Steps; 0: only of steps that fail.
  const std::chrono::nanoseconds ready_at_ = worker_sdk::process_age();
  const std::unique_ptr<worker_sdk::AgentLink> link_;  // Null: the ranks are fixed.
  KeptState kept_;
  std::vector<std::unique_ptr<Sharded>> sharded_;
  std::int64_t origin_ = 0;  // The steps after which sharded state is filled by the program.
  std::vector<int> nodes_;   // By rank of the round.
  std::vector<Between> betweens_;
  Standing standing_;
  ShardDivision division_;            // Of this round.
  const std::int64_t per_million_;    // Of shards are audited.
  std::vector<int> hosts_;            // By rank of the round, equal numbers on one host.
  std::int64_t first_of_round_ = -1;  // The first step of this round.
  std::vector<Dispute> disputes_;     // Of the step that runs again because of them.
  bool runs_again_ = false;           // The step, in a round that no rank has left.
  JobCounters counters_;
  bool is_running_ = false;
  bool leaving_ = false;     // All ranks have agreed to leave.
  std::int64_t begun_ = -1;  // The last step whose body was called.
  worker_sdk::Clock::time_point last_commit_{};
  int left_round_ = -1;
  int rank_ = -1;  // Of the newest round.
  int world_size_ = 0;
  std::optional<worker_sdk::HeldSeat> seat_;
  std::optional<ProcessGroup> group_;
  JobMemory memory_;         // Its writer ends before the group.
  bool is_settled_ = false;  // The group's ranks have one state.
  bool has_shard_ = false;   // Between begin_shard() and end_shard().
  int shard_ = -1;           // Of the last begin_shard(), and its text.
  std::string work_;
  std::uint64_t requested_bundles_ = 0;  // That are done.
  std::size_t findings_written_ = 0;     // Bundles of steps that this process has not failed in.
  std::int64_t units_raised_at_ = -1;    // The step that was computed again with greater units.
  bool is_lost_ = false;                 // Sharded state is lost; a checkpoint must be resumed.
  Step::State* in_body_ = nullptr;       // While the body runs.
  bool is_cut_ = false;                  // require_round() has thrown: the round is over.
  bool is_restored_ = false;             // From the memory folder, not by the program.
};

}  // namespace ddprun::elastic
