// A job in replay mode that computes whole steps, for `ddprun replay --bisect`: the step of a
// bundle up to its commit; or all steps until that of another bundle, whose state it compares with
// its own, or until run() ends. Where it is, and what it finds, is in a file (common/bundle.h,
// Walk) that the launcher reads when the process has ended, in whatever way.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "common/exit_status.h"
#include "common/system/descriptors.h"
#include "common/system/folder.h"
#include "common/system/variable.h"
#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/job/job_inside.h"
#include "worker_sdk/job/shard_plan.h"
#include "worker_sdk/worker/crash_text.h"

namespace ddprun::elastic {

using worker_sdk::Clock;
using worker_sdk::GroupInside;

bool JobInside::ends_at_reduction(const Step::State& step) const {
  if (is_walking()) return step.captured.has_value();
  return replay_ && replay_->bundle.shard >= 0;
}

bool JobInside::ends_at_commit(const Step::State& step) const {
  if (is_walking()) return step.captured.has_value() || !replay_->walking->goes_on;
  return replay_ != nullptr;
}

// `steps` are those of one run() of perhaps several: a later one goes on.
void JobInside::walk(std::int64_t steps, const Job::Body& body) {
  Walking& walking = *replay_->walking;
  if (replay_->bundle.step >= steps) {
    standing_.committed = std::max(committed(), steps);
    return;
  }
  if (!is_settled_) {
    begin_replay();
    walking.not_finite = kept_.not_finite(*group_).elements;
  }
  while (committed() < steps && committed() < walking.until) walk_step(body);
  const bool is_open = walking.goes_on && !walking.last;
  if (committed() == walking.until || is_open) arrive();
}

void JobInside::walk_step(const Job::Body& body) {
  Step::State state{.job = *this, .number = committed()};
  state.began = Clock::now();
  state.spent_before = GroupInside::spent;
  begun_ = committed();
  begin_shards();
  note_walk({.state = Walk::State::kComputes});
  Step step(state);
  try {
    body(step);
  } catch (const std::exception&) {
    if (!replay_->is_over) capture(state, -1, worker_sdk::text_of_current_exception(), 0);
    if (!replay_->is_over) note_failed(state);
    if (!replay_->is_over) throw;  // The program ends as it does by itself.
  } catch (...) {                  // Of a program in C or Python, which has captured the text.
    if (!replay_->is_over && state.captured) note_failed(state);
    if (!replay_->is_over) throw;
  }
  if (state.captured || replay_->is_over) end_walk(state);
  if (!state.is_committed) {
    refuse("Job::run",
           "the body has returned without commit() of step " + std::to_string(state.number));
  }
  const KeptState::NotFinite found = kept_.not_finite(*group_);
  if (found.elements <= replay_->walking->not_finite) return;
  note_walk({.state = Walk::State::kFailed,
             .found = "\"" + found.first + "\" is not finite after the step"});
  std::fflush(nullptr);
  ::_exit(kExitOk);
}

// In place of what was there: the process may end at any time.
void JobInside::note_walk(Walk walk) const {
  walk.step = std::max(walk.step, begun_);  // A body may fail behind its commit.
  walk.not_finite = replay_->walking->not_finite;
  const std::string piece =
      walk.shard < 0 ? "step " + std::to_string(walk.step) : piece_of(walk.step, walk.shard);
  if (walk.work.empty()) walk.work = piece;
  const std::string text = encode_walk(std::move(walk));
  const UniqueFd file(
      ::open(replay_->walking->report.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  const auto bytes = static_cast<ssize_t>(text.size());
  if (file && ::write(file.get(), text.data(), text.size()) == bytes) return;
  refuse("replaying steps", "cannot write to " + replay_->walking->report);
}

// Beside the bundles between which the step is there is one of this step, too, unless the run has
// written it.
void JobInside::note_failed(Step::State& step) {
  const Walking& walking = *replay_->walking;
  const Bundle& captured = *step.captured;
  note_walk({.state = Walk::State::kFailed,
             .shard = captured.shard,
             .work = captured.work,
             .found = captured.why});
  const bool is_before_step = step.number == committed();
  if (!walking.goes_on || standing_.condition != Condition::kWhole || !is_before_step) return;
  Shards shards;
  for (const auto& one : sharded_) shards.push_back(one->state_->gather_on_first(*group_));
  Bundle bundle = replay_->bundle;
  bundle.cause = Bundle::Cause::kFailure;
  bundle.step = step.number, bundle.shard = captured.shard, bundle.shards = step.shards;
  bundle.why = captured.why, bundle.work = captured.work, bundle.hash = captured.hash;
  bundle.who = name_of(0) + " (in a bisection)";
  bundle.items.clear();
  const std::string from = environment_variable(kReplayVariable);
  const std::string path = from.substr(0, from.rfind('/') + 1) + failed_prefix(bundle.run_id) +
                           std::to_string(step.number) + ".bundle";
  if (!file_bytes(path)) (void)write_bundle_at(path, std::move(bundle), shards);
}

void JobInside::end_walk(Step::State& step) {
  if (step.captured) {
    note_failed(step);
  } else {
    note_walk({.state = Walk::State::kGood});
  }
  std::fflush(nullptr);
  ::_exit(kExitOk);
}

void JobInside::arrive() {
  const Walking& walking = *replay_->walking;
  if (walking.last) require_kept(*walking.last);
  std::string different = walking.last ? kept_.difference(*group_, walking.state) : "";
  for (std::size_t i = kept_.items().size(); i < walking.state.size(); ++i) {
    ShardedState& state = *sharded_[i - kept_.items().size()]->state_;
    if (different.empty() && state.gather_on_first(*group_) != walking.state[i]) {
      different = state.name();
    }
  }
  note_walk({.state = different.empty() ? Walk::State::kGood : Walk::State::kDiffers,
             .step = committed(),
             .found = different});
  std::fflush(nullptr);
  ::_exit(kExitOk);
}

}  // namespace ddprun::elastic
