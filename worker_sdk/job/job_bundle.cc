// Writes bundles (common/bundle.h): of a step in which something has failed, with the state that
// the job keeps since the last committed step. A rank that fails by an exception writes it itself;
// of one whose process has crashed, the lowest rank of the next round does, before it goes on.

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <fstream>
#include <map>
#include <utility>

#include "common/checksum.h"
#include "common/release.h"
#include "common/system/folder.h"
#include "common/system/own_process.h"
#include "worker_sdk/base/replace_file.h"
#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/job/job_inside.h"
#include "worker_sdk/job/shard_plan.h"
#include "worker_sdk/worker/crash_text.h"

namespace ddprun::elastic {

using worker_sdk::GroupInside;

namespace {

constexpr std::size_t kBundlesKept = 8;   // Of a run in one folder, the newest,
constexpr std::size_t kRegularKept = 16;  // and of those by --bundle-every.
constexpr std::size_t kValueMax = 4096;
constexpr mode_t kBundleMode = 0600;               // A command line may have secrets.
constexpr std::chrono::seconds kOthersBundle{60};  // How long a rank that fails waits for it.

std::vector<std::string> environment_that_matters() {
  std::vector<std::string> result;
  for (const auto& [name, value] : GroupInside::process_variables()) {
    if (is_of_results(name) && value.size() <= kValueMax) result.push_back(name + "=" + value);
  }
  return result;
}

std::vector<std::string> own_command() {
  std::ifstream file("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> words;
  for (std::string word; std::getline(file, word, '\0');) words.push_back(word);
  return words;
}

// As the program began: it may change its folder, and its command may have relative paths.
char own_folder[4096];
const bool has_own_folder = ::getcwd(own_folder, sizeof own_folder) != nullptr;

std::string own_system() {
  utsname names{};
  if (::uname(&names) != 0) return "";
  return std::string(names.sysname) + " " + names.release + " " + names.machine;
}

std::string key_of_bundle(std::int64_t step) {
  return "ddprun/bundle of step " + std::to_string(step);
}

std::string key_of_written(std::int64_t step) { return key_of_bundle(step) + " is written"; }

// 0: there is none.
std::time_t written_at(const std::string& path) {
  struct stat found {};
  return ::stat(path.c_str(), &found) == 0 ? found.st_mtime : 0;
}

// Whether the file was written since this process began.
bool is_of_this_life(const std::string& path) {
  struct stat found {};
  if (::stat(path.c_str(), &found) != 0) return false;
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);  // Of files' times.
  const auto since_epoch = [](const timespec& time) {
    return std::chrono::seconds(time.tv_sec) + std::chrono::nanoseconds(time.tv_nsec);
  };
  return since_epoch(found.st_mtim) >= since_epoch(now) - worker_sdk::process_age();
}

void remove_old_bundles(const std::string& folder, const std::string& prefix) {
  std::vector<std::pair<std::time_t, std::string>> found;
  for (const std::string& name : names_in(folder).names) {
    if (!name.starts_with(prefix)) continue;
    // A run has one writer at a time: the others wait for it, so that this one was killed.
    if (name.ends_with(".bundle.tmp")) ::unlink((folder + "/" + name).c_str());
    if (!name.ends_with(".bundle")) continue;
    found.emplace_back(written_at(folder + "/" + name), folder + "/" + name);
  }
  std::sort(found.rbegin(), found.rend());
  for (std::size_t i = kBundlesKept; i < found.size(); ++i) ::unlink(found[i].second.c_str());
}

std::atomic<JobInside*> crashing_job{nullptr};

// Keeps some, `newest` among them. Those of later steps are of a run before this one that had the
// same name, or of what the job has computed before it went back.
void thin_out(const std::string& folder, const std::string& prefix, std::int64_t newest) {
  std::map<std::int64_t, std::string> found;  // By step.
  for (const std::string& name : names_in(folder).names) {
    if (!name.starts_with(prefix)) continue;
    if (name.ends_with(".bundle.tmp")) ::unlink((folder + "/" + name).c_str());
    if (name.ends_with(".bundle")) found[std::atoll(name.c_str() + prefix.size())] = name;
  }
  const auto later = found.upper_bound(newest);
  if (later != found.end()) {
    std::fprintf(stderr, "ddprun: bundles of later steps, from step %lld on, are removed from %s\n",
                 static_cast<long long>(later->first), folder.c_str());
  }
  for (auto at = later; at != found.end(); at = found.erase(at)) {
    ::unlink((folder + "/" + at->second).c_str());
  }
  while (found.size() > kRegularKept) {
    std::vector<std::int64_t> steps;
    for (const auto& [step, name] : found) steps.push_back(step);
    const auto gone = found.find(steps[most_superfluous(steps)]);
    ::unlink((folder + "/" + gone->second).c_str());
    found.erase(gone);
  }
}

}  // namespace

void JobInside::capture(Step::State& step, int shard, std::string_view why, std::uint64_t hash) {
  if ((bundles_.empty() && !replay_) || step.captured) return;
  const bool is_of_work = has_shard_ && (shard < 0 || shard == shard_);
  Bundle bundle{.why = std::string(why), .step = step.number};
  bundle.shard = shard < 0 && has_shard_ ? shard_ : shard;
  bundle.work = is_of_work         ? work_
                : bundle.shard < 0 ? "step " + std::to_string(step.number)
                                   : piece_of(step.number, bundle.shard);
  if (hash != 0) bundle.hash = hash_of_replay(step, hash);
  step.captured = std::move(bundle);
}

// Empty: a replay begins with the units that are kept, which were too small for this step, so that
// it has another hash.
std::string JobInside::hash_of_replay(const Step::State& step, std::uint64_t hash) const {
  return units_raised_at_ == step.number ? "" : hash_text(hash);
}

// An exception of the program, not one that the end of the round has caused. By then the body has
// left, so that what it has changed in kept memory, such as a module's buffers, is back.
void JobInside::capture_exception(Step::State& step) {
  if (replay_) return;
  try {
    throw;
  } catch (const Error&) {  // Of the job itself; it names what is wrong.
  } catch (const std::exception&) {
    capture(step, -1, worker_sdk::text_of_current_exception(), 0);
  } catch (...) {
  }
  write_captured(step);
}

void JobInside::write_captured(Step::State& step) {
  if (!step.captured || step.is_bundled || replay_ || bundles_.empty()) return;
  const bool is_before_step = step.number == committed();
  if (standing_.condition != Condition::kWhole || !is_before_step) return;
  if (has_lost_round() || is_over() || runs_again_) return;
  step.is_bundled = true;
  // What ends the body is written though the step before has a bundle.
  const bool ends_body = std::current_exception() != nullptr;
  if (!ends_body && findings_written_ >= kBundlesKept) return;
  if (!claim_bundle(ends_body)) {
    if (ends_body) wait_for_bundle();
    return;
  }
  Bundle bundle = bundle_of(&step);
  bundle.why = step.captured->why, bundle.work = step.captured->work;
  bundle.shard = step.captured->shard, bundle.hash = step.captured->hash;
  const auto began = worker_sdk::Clock::now();
  write_claimed(std::move(bundle));
  step.began += worker_sdk::Clock::now() - began;  // It is not the work of this rank's shards.
  if (!ends_body) ++findings_written_;
}

// Of all ranks, the first that finds something in a step.
bool JobInside::claim_bundle(bool may_continue) {
  try {
    Store& store = group_->store();
    const bool is_first = store.add(key_of_bundle(committed()), 1) == 1;
    if (!is_first || may_continue || committed() == 0) return is_first;
    (void)store.erase(key_of_bundle(committed() - 2));
    (void)store.erase(key_of_written(committed() - 2));
    return !store.check({key_of_bundle(committed() - 1)});
  } catch (const Error&) {
    return false;
  }
}

void JobInside::write_claimed(Bundle bundle) {
  write_bundle(std::move(bundle));
  try {
    group_->store().set(key_of_written(committed()), "");
  } catch (const Error&) {  // The others wait for a while.
  }
}

// The end of this rank's process ends all others, and that which writes the bundle with them.
void JobInside::wait_for_bundle() {
  constexpr std::chrono::milliseconds kLook{100};
  const auto deadline = worker_sdk::Clock::now() + kOthersBundle;
  while (!has_lost_round() && worker_sdk::Clock::now() < deadline) {
    try {
      return group_->store().wait({key_of_written(committed())}, kLook);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::timed_out) return;
    }
  }
}

// A process has ended while it computed a shard, which ended the round before this one. The others
// wait: one of them computes that shard next, and may end the run by it.
void JobInside::capture_lost_work() {
  if (!seat_) return;
  const LostWork& lost = seat_->place.lost_work;
  std::int64_t step = -1;
  int shard = -1;
  if (std::sscanf(lost.work.c_str(), "step %" SCNd64 ", shard %d", &step, &shard) != 2) return;
  if (step != committed() || shard < 0) return;  // No rank has the state from which it began.
  if (group_->rank() == 0 && !bundles_.empty()) write_lost_work(lost, shard);
  if (group_->world_size() > 1) group_->barrier();
}

void JobInside::write_lost_work(const LostWork& lost, int shard) {
  Bundle bundle = bundle_of(nullptr);
  const std::string path = failed_path(bundle);
  // An exception has ended the process, which has written the bundle itself.
  if (is_of_this_life(path)) return;
  bundle.cause = Bundle::Cause::kCrash;
  bundle.why = lost.how, bundle.who = lost.who, bundle.work = lost.work;
  bundle.shard = shard;
  write_bundle(std::move(bundle));
}

void JobInside::capture_crashes(bool while_running) {
  if (bundles_.empty() || replay_) return;
  crashing_job.store(while_running ? this : nullptr);
  worker_sdk::set_crash_hook(&JobInside::capture_crash);
}

// In a copy of a process that has crashed, of which no other rank writes a bundle afterwards.
void JobInside::capture_crash(int signal) {
  JobInside* const job = crashing_job.load();
  if (!job || !job->in_body_ || job->leaves_crash_to_others()) return;
  if (job->forks_ != worker_sdk::fork_count()) return;  // A child of the rank, which goes on.
  const Step::State& step = *job->in_body_;
  if (step.is_committed || job->standing_.condition != Condition::kWhole) return;
  Bundle bundle = job->bundle_of(&step);
  if (make_folders(job->bundles_) != 0) return;
  const UniqueFd claim = job->claim_crash(bundle);
  if (!claim) return;
  bundle.cause = Bundle::Cause::kCrash;
  bundle.why = worker_sdk::killed_by(signal);
  bundle.shard = job->has_shard_ ? job->shard_ : -1;
  bundle.work = job->has_shard_ ? job->work_ : "step " + std::to_string(step.number);
  job->write_bundle(std::move(bundle));
}

// Of ranks that crash in the same step one writes: that which gets the lock, until its copy ends.
UniqueFd JobInside::claim_crash(const Bundle& bundle) const {
  const std::string path = bundles_ + "/." + failed_prefix(bundle.run_id) + "crash";
  UniqueFd claim(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kBundleMode));
  if (!claim || ::flock(claim.get(), LOCK_EX | LOCK_NB) != 0) return {};
  return is_of_this_life(failed_path(bundle)) ? UniqueFd() : std::move(claim);
}

// Those of the next round: it begins with what this process has computed.
bool JobInside::leaves_crash_to_others() const {
  if (!seat_ || world_size_ == 1 || !has_shard_) return false;
  return seat_->place.restart_count <
         std::atoi(environment_variable("TORCHELASTIC_MAX_RESTARTS").c_str());
}

// By `ddprunctl capture`. The others wait for this rank meanwhile.
void JobInside::capture_on_request() {
  const auto progress = GroupInside::progress(*group_);
  progress->take_requests();
  const std::uint64_t requested = progress->requested_bundles();
  if (std::exchange(requested_bundles_, requested) >= requested || bundles_.empty()) return;
  if (!claim_bundle(true)) return;  // Another rank writes the same file.
  Bundle bundle = bundle_of(nullptr);
  bundle.cause = Bundle::Cause::kRequest;
  bundle.why = "requested by ddprunctl capture";
  bundle.work = "step " + std::to_string(committed());
  write_claimed(std::move(bundle));
}

// Of a shard of which an audit has found two results: `hash` is the right one, or the owner's.
void JobInside::capture_audited(const Step::State& step, const Dispute& dispute, std::uint64_t hash,
                                const std::string& why) {
  if (bundles_.empty() || !claim_bundle(true)) return;
  Bundle bundle = bundle_of(&step);
  bundle.cause = Bundle::Cause::kRequest;
  bundle.why = "audit: " + why;
  bundle.work = piece_of(step.number, dispute.shard);
  bundle.shard = dispute.shard, bundle.hash = hash_of_replay(step, hash);
  write_claimed(std::move(bundle));
}

Bundle JobInside::bundle_of(const Step::State* step) const {
  Bundle bundle{.step = committed()};
  bundle.who = name_of(group_->rank());
  bundle.world_size = group_->world_size();
  bundle.shards = step ? step->shards : 0;
  bundle.skip = seat_ ? seat_->place.skip : "";
  bundle.run_id = group_->identity().run_id;
  bundle.release = release();
  bundle.system = own_system();
  bundle.command = own_command();
  bundle.folder = has_own_folder ? own_folder : "";
  bundle.environment = environment_that_matters();
  return bundle;
}

std::string JobInside::failed_path(const Bundle& bundle) const {
  return bundles_ + "/" + failed_prefix(bundle.run_id) + std::to_string(bundle.step) + ".bundle";
}

void JobInside::write_bundle(Bundle bundle) {
  const std::string path = failed_path(bundle);
  if (!write_bundle_at(path, bundle, {})) return;
  remove_old_bundles(bundles_, failed_prefix(bundle.run_id));
  std::fprintf(stderr, "ddprun: %s: %s: %s; compute it again with: ddprun replay %s\n",
               bundle.who.c_str(), bundle.work.c_str(), bundle.why.c_str(), path.c_str());
}

// By --bundle-every. All ranks call it: they send their shards of sharded state to rank 0, which
// writes. The others wait for it when they next communicate.
void JobInside::write_regular_bundle() {
  if (bundle_every_ == 0 || committed() % bundle_every_ != 0) return;
  Shards shards;
  for (const auto& one : sharded_) shards.push_back(one->state_->gather_on_first(*group_));
  if (group_->rank() != 0) return;
  Bundle bundle = bundle_of(nullptr);
  bundle.cause = Bundle::Cause::kRequest;
  bundle.why = "written every " + std::to_string(bundle_every_) + " steps";
  bundle.work = "step " + std::to_string(committed());
  const std::string run_id = bundle.run_id;
  const std::string path = bundles_ + "/" + regular_name(run_id, committed());
  if (!write_bundle_at(path, std::move(bundle), shards)) return;
  thin_out(bundles_, regular_prefix(run_id), committed());
}

// A failure is a warning: the run has another problem already.
bool JobInside::write_bundle_at(const std::string& path, Bundle bundle, const Shards& shards) {
  const auto warn = [&](const std::string& why) {
    std::fprintf(stderr, "ddprun: warning: no bundle of %s: %s\n", bundle.work.c_str(),
                 why.c_str());
    return false;
  };
  try {
    const std::string folder = path.substr(0, path.rfind('/'));
    if (const int error = make_folders(folder); error != 0) {
      return warn("cannot make " + folder + ": " + std::strerror(error));
    }
    const KeptState::Snapshot snapshot = kept_.snapshot();
    for (std::size_t i = 0; i < snapshot.sizes.size(); ++i) {
      bundle.items.push_back({.name = kept_.items()[i].name, .bytes = snapshot.sizes[i]});
    }
    for (std::size_t i = 0; i < shards.size(); ++i) {
      bundle.items.push_back(
          {.name = sharded_[i]->state_->name_in_checkpoint(), .bytes = shards[i].size()});
    }
    if (bundle.shard >= bundle.shards) bundle.shards = 0;  // begin_shard() takes any number.
    const auto start = encode_start(bundle);
    if (!start) return warn(start.error().context);
    const auto contents = [&](const worker_sdk::WritePart& write) {
      std::uint64_t sum = 0;
      const auto add = [&](std::string_view part) {
        sum = checksum(part.data(), part.size(), sum);
        write(part);
        pass("bundle");
      };
      add(*start);
      kept_.write(*group_, snapshot, kBundlePieceBytes, add);
      for (const std::vector<std::byte>& one : shards) {
        for (std::size_t at = 0; at < one.size(); at += kBundlePieceBytes) {
          add({reinterpret_cast<const char*>(one.data()) + at,
               std::min(kBundlePieceBytes, one.size() - at)});
        }
      }
      write({reinterpret_cast<const char*>(&sum), sizeof sum});
    };
    worker_sdk::replace_file_by_parts(path, contents, kBundleMode);
    return true;
  } catch (const std::exception& error) {
    return warn(error.what());
  } catch (...) {
    return warn("a function that was given to keep() has failed");
  }
}

}  // namespace ddprun::elastic
