// A job in replay mode: run() takes the kept state of a bundle, calls the body once, for the
// bundle's step and shard, prints whether what was found in the run is found here, too, and ends
// the process, as what follows run() in a program is for a job that has trained. An exception
// passes through run() instead, so that a debugger sees it. At the end of this file: a job that
// computes whole steps.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>
#include <utility>

#include "common/bundle.h"
#include "common/checksum.h"
#include "common/exit_status.h"
#include "common/system/descriptors.h"
#include "common/system/folder.h"
#include "common/system/own_process.h"
#include "common/text/figures.h"
#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/job/job_inside.h"
#include "worker_sdk/job/shard_plan.h"
#include "worker_sdk/worker/crash_text.h"

namespace ddprun::elastic {

using worker_sdk::GroupInside;

namespace {

constexpr const char* kReading = "reading a bundle";

[[noreturn]] void refuse_bundle(const std::string& path, const std::string& why) {
  throw Error(ErrorKind::corrupt, {.operation = kReading}, path + ": " + why);
}

// Into memory, of the file's bytes the next ones.
void read_bytes(std::ifstream& file, const std::string& path, char* to, std::size_t bytes) {
  if (file.read(to, static_cast<std::streamsize>(bytes))) return;
  refuse_bundle(path, "it is cut off, or cannot be read");
}

Bundle read_bundle(const std::string& path, KeptState::Staged& state) {
  struct stat found {};
  std::ifstream file(path, std::ios::binary);
  if (!file || ::stat(path.c_str(), &found) != 0) {
    throw Error(ErrorKind::system, {.operation = kReading},
                "cannot open " + path + ": " + std::strerror(errno));
  }
  const auto size = static_cast<std::uint64_t>(found.st_size);
  std::string start(
      static_cast<std::size_t>(std::min<std::uint64_t>(size, kBundleStartBytes + kBundleHeadMax)),
      '\0');
  read_bytes(file, path, start.data(), start.size());
  auto decoded = decode_start(start, size);
  if (!decoded) refuse_bundle(path, decoded.error().context);
  std::uint64_t sum = checksum(start.data(), static_cast<std::size_t>(decoded->items_at));
  file.seekg(static_cast<std::streamoff>(decoded->items_at));
  for (const Bundle::Item& item : decoded->bundle.items) {
    std::vector<std::byte>& bytes = state.emplace_back(static_cast<std::size_t>(item.bytes));
    for (std::size_t at = 0; at < bytes.size(); at += kBundlePieceBytes) {
      const std::size_t n = std::min(kBundlePieceBytes, bytes.size() - at);
      read_bytes(file, path, reinterpret_cast<char*>(bytes.data()) + at, n);
      sum = checksum(bytes.data() + at, n, sum);
    }
  }
  std::uint64_t expected = 0;
  read_bytes(file, path, reinterpret_cast<char*>(&expected), sizeof expected);
  if (sum != expected) refuse_bundle(path, "it is damaged: its checksum is wrong");
  return std::move(decoded->bundle);
}

// Of the bundle's step another shard, with which nothing can be compared.
void choose_shard(Bundle& bundle, const std::string& text) {
  const int shard = as_number<int>(text).value_or(-1);
  if (shard < 0) {
    throw Error(ErrorKind::bad_environment, {.operation = kReading},
                std::string(kReplayShardVariable) + " is \"" + text + "\", not a shard");
  }
  if (shard == std::exchange(bundle.shard, shard)) return;
  bundle.cause = Bundle::Cause::kRequest;
  bundle.hash.clear();
  bundle.why = bundle.work + ": " + bundle.why;
}

void note_begun() {
  const std::string path = environment_variable(kReplayProgressVariable);
  const UniqueFd file(path.empty() ? -1 : ::open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (file) (void)!::write(file.get(), "b", 1);
}

}  // namespace

std::unique_ptr<JobInside::Replay> JobInside::replay_of_environment() {
  const std::string path = environment_variable(kReplayVariable);
  if (path.empty()) return nullptr;
  auto replay = std::make_unique<Replay>();
  replay->bundle = read_bundle(path, replay->state);
  const std::string shard = environment_variable(kReplayShardVariable);
  if (!shard.empty()) choose_shard(replay->bundle, shard);
  const std::string report = environment_variable(kReplayWalkVariable);
  if (report.empty()) return replay;
  replay->bundle.shard = -1;
  replay->walking = std::make_unique<Walking>();
  Walking& walking = *replay->walking;
  walking.report = report;
  walking.until = replay->bundle.step + 1;
  const std::string until = environment_variable(kReplayUntilVariable);
  walking.goes_on = !until.empty();
  if (until == kUntilEnd) walking.until = std::numeric_limits<std::int64_t>::max();
  if (until.empty() || until == kUntilEnd) return replay;
  walking.last = read_bundle(until, walking.state);
  walking.until = walking.last->step;
  if (walking.until <= replay->bundle.step) {
    throw Error(ErrorKind::bad_environment, {.operation = kReading},
                until + " is of step " + std::to_string(walking.until) + ", and " + path +
                    " of step " + std::to_string(replay->bundle.step));
  }
  return replay;
}

// Alone, whatever the environment has of ranks.
void JobInside::begin_replay() {
  InitOptions options = options_.init;
  options.init_method = "env://";
  options.rank = options.world_size = -1;
  group_ = GroupInside::join(worker_sdk::read_environment({}, options), options);
  rank_ = 0, world_size_ = 1;
  require_kept(replay_->bundle);
  const std::size_t kept = kept_.items().size();
  const std::int64_t step = replay_->bundle.step;
  KeptState::Staged& state = replay_->state;
  if (state.size() > kept) {
    standing_ = {.condition = Condition::kWhole, .committed = step, .visited = step};
    origin_ = step;
    for (std::size_t i = kept; i < state.size(); ++i) {
      sharded_[i - kept]->state_->fill_from(std::move(state[i]));
    }
    state.resize(kept);
  }
  settle_state();
  kept_.put(*group_, state);
  state.clear();
  is_settled_ = true;
  standing_.committed = standing_.visited = step;
}

// Only regular bundles have what is kept in shards.
void JobInside::require_kept(const Bundle& bundle) const {
  const std::vector<Bundle::Item>& there = bundle.items;
  std::vector<KeptState::Item> here = kept_.items();
  for (std::size_t i = 0; i < sharded_.size() && there.size() > kept_.items().size(); ++i) {
    const ShardedState& state = *sharded_[i]->state_;
    here.push_back({.name = state.name_in_checkpoint()});
    here.back().array = {nullptr, static_cast<std::size_t>(state.bytes()), DataType::u8};
  }
  for (std::size_t i = 0; i < std::max(here.size(), there.size()); ++i) {
    const bool is_equal = i < here.size() && i < there.size() && here[i].name == there[i].name &&
                          (here[i].save || here[i].array.bytes() == there[i].bytes);
    if (is_equal) continue;
    const auto text = [](bool is_there, const std::string& name, std::uint64_t bytes) {
      return is_there ? "\"" + name + "\" of " + std::to_string(bytes) + " bytes" : "nothing more";
    };
    throw Error(
        ErrorKind::mismatch, {.rank = 0, .operation = kReading},
        "the program keeps " +
            (i < here.size() ? text(true, here[i].name, here[i].array.bytes())
                             : text(false, "", 0)) +
            " where the bundle has " +
            (i < there.size() ? text(true, there[i].name, there[i].bytes) : text(false, "", 0)) +
            ": start the program that the run had, with its arguments");
  }
}

std::ranges::iota_view<int, int> JobInside::shards_of_replay(const Step::State& step,
                                                             int shards) const {
  const int only = replay_->bundle.shard;
  using Numbers = std::ranges::iota_view<int, int>;
  if (only < 0) return Numbers(0, shards);
  if (only < shards) return Numbers(only, only + 1);
  refuse("Step::shards", "there is no shard " + std::to_string(only) + " of step " +
                             std::to_string(step.number) + ", which has " + std::to_string(shards) +
                             " shards");
}

// The body leaves as it does when the ranks change.
void JobInside::end_replay_here() {
  replay_->is_over = true;
  throw Error(ErrorKind::membership_changed, {.rank = 0, .operation = "replaying a step"},
              "all that is replayed is computed");
}

void JobInside::replay(const Job::Body& body) {
  begin_replay();
  note_begun();
  Step::State state{.job = *this, .number = committed()};
  begun_ = committed();
  begin_shards();
  Step step(state);
  try {
    body(step);
  } catch (const std::exception&) {
    if (!replay_->is_over) report_replay(state, worker_sdk::text_of_current_exception());
    if (!replay_->is_over) throw;
  } catch (...) {  // Of a program in C or Python, which has captured the text.
    const bool ends_process = !state.captured && replay_->bundle.cause == Bundle::Cause::kCrash;
    if (!replay_->is_over && !ends_process) report_replay(state, "a failure without a text");
    if (!replay_->is_over) throw;  // Such as sys.exit(3): the launcher sees how the process ends.
  }
  const bool is_same = report_replay(state, "");
  std::fflush(nullptr);
  ::_exit(is_same ? kExitOk : kExitFailed);
}

bool JobInside::report_replay(const Step::State& step, const std::string& found) const {
  const Bundle& bundle = replay_->bundle;
  Replayed replayed{.work = bundle.shard < 0 ? "step " + std::to_string(step.number)
                                             : piece_of(step.number, bundle.shard),
                    .found = step.captured ? step.captured->why : found};
  if (work_.starts_with(replayed.work + ":")) replayed.work = work_;
  const auto hash = step.hashes.find(bundle.shard);
  if (hash != step.hashes.end()) replayed.hash = hash_text(hash->second);
  if (step.captured && !step.captured->hash.empty()) replayed.hash = step.captured->hash;
  const ReplayVerdict verdict = compare(bundle, replayed);
  std::fprintf(stderr, "ddprun: %s\n", verdict.text.c_str());
  return verdict.is_same;
}

// A job in replay mode that computes whole steps, for `ddprun replay --bisect`: the step of a
// bundle up to its commit; or all steps until that of another bundle, whose state it compares with
// its own, or until run() ends. Where it is, and what it finds, is in a file (common/bundle.h,
// Walk) that the launcher reads when the process has ended, in whatever way.

using worker_sdk::Clock;

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
