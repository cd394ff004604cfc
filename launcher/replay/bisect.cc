#include "launcher/replay/bisect.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "common/bundle.h"
#include "common/exit_status.h"
#include "common/system/descriptors.h"
#include "common/system/folder.h"
#include "common/system/log.h"
#include "common/text/figures.h"
#include "common/text/words.h"
#include "launcher/replay/replay.h"
#include "launcher/run/launch.h"

namespace ddprun::launcher {
namespace {

using WalkState = Walk::State;

std::string step_text(const ReadBundle& read) { return "step " + std::to_string(read.bundle.step); }

std::string joined(const std::set<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

// Those of one run in order of step, of each step one.
Result<std::vector<ReadBundle>> bundles_of_run(const ReplayOptions& options) {
  const Listing listing = names_in(options.bundle);
  if (listing.error != 0) {
    return Failure{Errc::kNotFound, options.bundle + ": " + std::strerror(listing.error)};
  }
  std::vector<ReadBundle> found;
  std::set<std::string> runs;
  for (const std::string& name : listing.names) {  // Regular ones before those of failures.
    if (!name.ends_with(".bundle")) continue;
    auto read = read_bundle(options.bundle + "/" + name);
    if (!read) log::warning(read.error().context + "; it is left out");
    if (!read) continue;
    runs.insert(read->bundle.run_id);
    const bool is_wanted = options.run.empty() || read->bundle.run_id == options.run;
    if (is_wanted) found.push_back(std::move(*read));
  }
  if (options.run.empty() && runs.size() > 1) {
    return usage(options.bundle +
                 " has bundles of several runs: choose one with --run: " + joined(runs));
  }
  if (found.empty()) {
    return usage(options.bundle + " has no bundle" +
                 (options.run.empty() ? "" : " of run " + options.run) +
                 ": a run writes them with --bundle-every");
  }
  // Bundles of failures lack what is kept in shards, without which no other step can be computed.
  std::size_t most = 0;
  for (const ReadBundle& one : found) most = std::max(most, one.bundle.items.size());
  std::erase_if(found, [&](const ReadBundle& one) { return one.bundle.items.size() < most; });
  const auto step = [](const ReadBundle& one) { return one.bundle.step; };
  std::ranges::stable_sort(found, {}, step);
  const auto twice = std::ranges::unique(found, {}, step);
  found.erase(twice.begin(), twice.end());
  return found;
}

class Bisection {
 public:
  Bisection(const ReplayOptions& options, std::vector<ReadBundle> bundles, std::string report)
      : options_(options), bundles_(std::move(bundles)), report_(std::move(report)) {}

  Result<bool> run() {
    const std::size_t n = bundles_.size();
    note(number_of(static_cast<int>(n), "bundle") + " of run " + bundles_.front().bundle.run_id +
         ", " + step_text(bundles_.front()) + " to " + std::to_string(bundles_.back().bundle.step));
    const auto bad = first_bad(n, [&](std::size_t i) { return is_bad(i); });
    if (!bad) return bad.error();
    if (*bad == n) return compare_all();
    if (*bad == 0) {
      return found("the first bundle is of " + step_text(bundles_[0]) +
                   ", which is bad already: it begins there, or before: " + text_of(walks_[0]));
    }
    const std::string at_bad = text_of(walks_[*bad]);
    const auto began = replay_between(*bad - 1, "; from the bundle on: " + at_bad);
    if (!began || *began) return began;
    return found("the first bad step is " + std::to_string(bundles_[*bad].bundle.step) + ": " +
                 at_bad +
                 "; its state is that of the steps before, computed again. Replay it: "
                 "ddprun replay " +
                 bundles_[*bad].path + own_program());
  }

 private:
  static void note(const std::string& text) { log::info("bisect: " + text); }
  static bool found(const std::string& text) {
    note(text);
    return true;
  }
  static std::string text_of(const Walk& walk) { return walk.work + ": " + walk.found; }

  // What a replay has to be given, too, if it is not the bundle's program.
  std::string own_program() const {
    std::string text = options_.argv.empty() ? "" : " --";
    for (const std::string& word : options_.argv) text += " " + shell_quote(word);
    return text;
  }

  // A Failure if the program does not get as far as the job's first step.
  Result<Walk> start(const ReadBundle& from, const std::string& until) {
    const auto command = command_of(options_, from.bundle);
    if (!command) return command.error();
    enter_folder(options_, from.bundle);
    set_environment(options_, from);
    ::setenv(kReplayWalkVariable, report_.c_str(), 1);
    if (!until.empty()) ::setenv(kReplayUntilVariable, until.c_str(), 1);
    if (::truncate(report_.c_str(), 0) != 0) return errno_failure("emptying " + report_);
    const auto status = run_here(*command);
    if (!status) return status.error();
    const WorkerDeath death = death_of(*status);
    const auto text = read_report();
    if (!text) return text.error();
    const std::string ended = how_it_ended(death);
    if (death.signal == SIGINT || death.exit_code == 128 + SIGINT) {
      return Failure{Errc::kNotFound, "the program was interrupted"};
    }
    if (text->empty()) {
      const bool has_last = !until.empty() && until != kUntilEnd;
      return Failure{
          Errc::kBadMessage,
          "the program has not begun " + step_text(from) + ", it " + ended +
              ": replay it alone, with ddprun replay " + from.path + own_program() +
              (has_last ? "; if that works, remove " + until + ", which is damaged" : "")};
    }
    auto walk = decode_walk(*text);
    if (!walk) return walk.error();
    if (walk->state == WalkState::kComputes && death.succeeded()) {
      return Failure{Errc::kBadMessage,
                     "the program ends by itself after step " + std::to_string(walk->step) +
                         ", before the last one that is to be computed: give it the arguments of "
                         "the run, behind --"};
    }
    if (walk->state == WalkState::kComputes) walk->state = WalkState::kFailed, walk->found = ended;
    return walk;
  }

  Result<std::string> read_report() const {
    const UniqueFd file(::open(report_.c_str(), O_RDONLY | O_CLOEXEC));
    std::string text(kWalkMax + 1, '\0');
    const ssize_t n = file ? ::read(file.get(), text.data(), text.size()) : -1;
    if (n < 0) return errno_failure("reading " + report_);
    text.resize(static_cast<std::size_t>(n));
    return text;
  }

  Result<bool> is_bad(std::size_t i) {
    auto walk = start(bundles_[i], "");
    if (!walk) return walk.error();
    if (i == 0) not_finite_ = walk->not_finite;
    const bool has_more = walk->not_finite > not_finite_;
    if (walk->state == WalkState::kGood && has_more) {
      walk->state = WalkState::kFailed;
      walk->found = "of what is kept " + std::to_string(walk->not_finite - not_finite_) +
                    " elements more than in the first bundle are not finite before the step";
    }
    const bool failed = walk->state != WalkState::kGood;
    note(step_text(bundles_[i]) + ": " + (failed ? text_of(*walk) : "good"));
    walks_.resize(bundles_.size());
    walks_[i] = std::move(*walk);
    return failed;
  }

  // All steps from bundle i until the next one, or the end. True: one of them is the first bad one.
  Result<bool> replay_between(std::size_t i, const std::string& at_next = "") {
    const ReadBundle& from = bundles_[i];
    const bool is_last = i + 1 == bundles_.size();
    const std::string last = is_last ? "" : std::to_string(bundles_[i + 1].bundle.step - 1);
    note("it computes " + (is_last ? "all steps from " + std::to_string(from.bundle.step) + " on"
                                   : "steps " + std::to_string(from.bundle.step) + " to " + last));
    const auto walk = start(from, is_last ? kUntilEnd : bundles_[i + 1].path);
    if (!walk) return walk.error();
    if (walk->state == WalkState::kFailed) {
      const std::string path = options_.bundle + "/" + failed_prefix(from.bundle.run_id) +
                               std::to_string(walk->step) + ".bundle";
      const bool is_there = ::access(path.c_str(), R_OK) == 0;
      return found("the first bad step is " + std::to_string(walk->step) + ": " + text_of(*walk) +
                   (is_there ? ". Replay it: ddprun replay " + path + own_program() : ""));
    }
    if (walk->state == WalkState::kDiffers) {
      const int ranks = std::max(from.bundle.world_size, bundles_[i + 1].bundle.world_size);
      return found("steps " + std::to_string(from.bundle.step) + " to " + last +
                   " fail nowhere here, but then \"" + walk->found +
                   "\" differs from what the run had" + only_order(ranks) +
                   "it began in one of them, by a machine that computes wrong, by what the program "
                   "remembers without job.keep(), by "
                   "arithmetic that is not deterministic, or because the program was changed" +
                   at_next);
    }
    return false;
  }

  // Here one rank has summed what several had: only exact sums have the same bits.
  static std::string only_order(int ranks) {
    if (ranks == 1) return ": ";
    return ". That says nothing if the program has plain sums, without GradientSums or with "
           "exact=False, as their bits depend on the number of ranks: " +
           std::to_string(ranks) + " in the run, one here. With exact sums ";
  }

  Result<bool> compare_all() {
    note("none of these steps fails");
    const auto later = replay_between(bundles_.size() - 1);
    if (!later || *later) return later;
    for (std::size_t i = 0; i + 1 < bundles_.size(); ++i) {
      const auto began = replay_between(i);
      if (!began || *began) return began;
    }
    note("no step fails, and the state in each bundle is that of the steps before it");
    return false;
  }

  const ReplayOptions& options_;
  const std::vector<ReadBundle> bundles_;
  const std::string report_;
  std::vector<Walk> walks_;  // By bundle.
  std::uint64_t not_finite_ = 0;
};

}  // namespace

int run_bisect(const ReplayOptions& given) {
  ReplayOptions options = given;
  std::error_code error;
  options.bundle = std::filesystem::absolute(given.bundle, error).lexically_normal().string();
  while (options.bundle.size() > 1 && options.bundle.ends_with('/')) options.bundle.pop_back();
  auto bundles = bundles_of_run(options);
  if (!bundles) return fail(bundles.error());
  std::string report =
      (std::filesystem::temp_directory_path(error) / "ddprun-bisect-XXXXXX").string();
  const UniqueFd file(::mkostemp(report.data(), O_CLOEXEC));
  if (!file) return fail(errno_failure("making " + report));
  const auto result = Bisection(options, std::move(*bundles), report).run();
  ::unlink(report.c_str());
  if (!result) return fail(result.error());
  return *result ? kExitOk : kExitFailed;
}

}  // namespace ddprun::launcher
