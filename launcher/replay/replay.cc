#include "launcher/replay/replay.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agent/node/command.h"
#include "common/bundle.h"
#include "common/exit_status.h"
#include "common/system/descriptors.h"
#include "common/system/folder.h"
#include "common/system/log.h"
#include "common/system/standard_output.h"
#include "common/text/display.h"
#include "common/text/figures.h"
#include "common/text/words.h"
#include "launcher/run/launch.h"

namespace ddprun::launcher {
namespace {

// The run that surrounds this process, if any does, is not the program's.
constexpr const char* kOfRuns[] = {"RANK",
                                   "WORLD_SIZE",
                                   "LOCAL_RANK",
                                   "LOCAL_WORLD_SIZE",
                                   "GROUP_RANK",
                                   "TORCHELASTIC_USE_AGENT_STORE",
                                   "MASTER_ADDR",
                                   "MASTER_PORT",
                                   "DDPRUN_AUDIT",
                                   "DDPRUN_PROGRESS",
                                   kBundlesVariable,
                                   "DDPRUN_BACKEND",
                                   "DDPRUN_WORKER_LINK",
                                   kReplayVariable,
                                   kReplayProgressVariable,
                                   kReplayShardVariable,
                                   kReplayWalkVariable,
                                   kReplayUntilVariable,
                                   kBundleEveryVariable,
                                   "DDPRUN_MEMORY",
                                   "DDPRUN_MEMORY_SIZE",
                                   "DDPRUN_MEMORY_COPIES"};

// Those that the run had follow.
void unset_variables_of_results() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text = *entry;
    names.emplace_back(text.substr(0, text.find('=')));
  }
  for (const std::string& name : names) {
    if (is_of_results(name)) ::unsetenv(name.c_str());
  }
}

std::string free_port() {
  const UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (!listener || ::bind(listener.get(), generic, size) != 0 ||
      ::getsockname(listener.get(), generic, &size) != 0) {
    return "29500";
  }
  return std::to_string(ntohs(address.sin_port));
}

// Those of the only rank of a run, as its job is: a program that reads them works, and a group that
// it makes itself has no other rank.
void set_variables_of_rank(const Bundle& bundle) {
  const std::pair<const char*, std::string> variables[] = {{"RANK", "0"},
                                                           {"LOCAL_RANK", "0"},
                                                           {"GROUP_RANK", "0"},
                                                           {"ROLE_RANK", "0"},
                                                           {"WORLD_SIZE", "1"},
                                                           {"LOCAL_WORLD_SIZE", "1"},
                                                           {"GROUP_WORLD_SIZE", "1"},
                                                           {"ROLE_WORLD_SIZE", "1"},
                                                           {"ROLE_NAME", "default"},
                                                           {"MASTER_ADDR", "127.0.0.1"},
                                                           {"MASTER_PORT", free_port()},
                                                           {"TORCHELASTIC_RUN_ID", bundle.run_id},
                                                           {"TORCHELASTIC_RESTART_COUNT", "0"},
                                                           {"TORCHELASTIC_MAX_RESTARTS", "0"}};
  for (const auto& [name, value] : variables) ::setenv(name, value.c_str(), 1);
}

// A file for the program's reports, empty at first; removed with the object.
class Report {
 public:
  static Result<Report> make() {
    std::error_code error;
    Report report;
    report.path_ = (std::filesystem::temp_directory_path(error) / "ddprun-replay-XXXXXX").string();
    const UniqueFd file(::mkostemp(report.path_.data(), O_CLOEXEC));
    if (!file) return errno_failure("making " + std::exchange(report.path_, ""));
    return report;
  }
  Report(Report&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  Report& operator=(Report&&) = delete;
  ~Report() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  const std::string& path() const { return path_; }
  bool is_empty() const {
    struct stat found {};
    return ::stat(path_.c_str(), &found) != 0 || found.st_size == 0;
  }

 private:
  Report() = default;
  std::string path_;
};

}  // namespace

Result<ReadBundle> read_bundle(const std::string& given) {
  char path[PATH_MAX];
  const UniqueFd file(::open(given.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat found {};
  if (!file || !::realpath(given.c_str(), path) || ::fstat(file.get(), &found) != 0) {
    return errno_failure("opening the bundle " + given);
  }
  std::string start(kBundleStartBytes + kBundleHeadMax, '\0');
  std::size_t size = 0;
  while (size < start.size()) {
    const ssize_t n = ::read(file.get(), start.data() + size, start.size() - size);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_failure("reading the bundle " + given);
    if (n == 0) break;
    size += static_cast<std::size_t>(n);
  }
  const auto bytes = static_cast<std::uint64_t>(found.st_size);
  auto decoded = decode_start(std::string_view(start).substr(0, size), bytes);
  if (!decoded) return Failure{decoded.error().code, given + ": " + decoded.error().context};
  return ReadBundle{path, std::move(decoded->bundle)};
}

Result<std::vector<std::string>> command_of(const ReplayOptions& options, const Bundle& bundle) {
  std::vector<std::string> command = bundle.command;
  if (!options.argv.empty()) {
    const agent::CommandRequest request{
        .program = options.argv.front(),
        .arguments = {options.argv.begin() + 1, options.argv.end()}};
    auto resolved =
        agent::resolve_command(request, agent::current_command_context(), agent::PosixFileProbe());
    if (!resolved) return resolved.error();
    command = std::move(*resolved);
  }
  if (command.empty()) return usage("the bundle has no command: give PROGRAM behind --");
  if (options.pdb) {
    command = with_pdb(command);
    if (command.empty())
      return usage("--pdb is for Python; for other programs: --with 'gdb --args'");
  }
  command.insert(command.begin(), options.with.begin(), options.with.end());
  return command;
}

void enter_folder(const ReplayOptions& options, const Bundle& bundle) {
  const bool is_own = options.argv.empty() && !bundle.folder.empty();
  if (!is_own || ::chdir(bundle.folder.c_str()) == 0) return;
  log::warning("the folder of the run, " + bundle.folder + ", is not here (" +
               std::strerror(errno) + "); its program is started in this one");
}

void set_environment(const ReplayOptions& options, const ReadBundle& read) {
  for (const char* name : kOfRuns) ::unsetenv(name);
  if (!read.bundle.environment.empty()) unset_variables_of_results();
  for (const std::string& entry : read.bundle.environment) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos || equals == 0) continue;
    ::setenv(entry.substr(0, equals).c_str(), entry.c_str() + equals + 1, 1);
  }
  set_variables_of_rank(read.bundle);
  ::setenv(kReplayVariable, read.path.c_str(), 1);
  if (options.shard) {
    ::setenv(kReplayShardVariable, std::to_string(*options.shard).c_str(), 1);
  }
  ::setenv("TORCHELASTIC_ERROR_FILE", "/dev/null", 1);  // A crash prints its stack, as in a run.
}

Result<int> run_here(const std::vector<std::string>& command) {
  std::vector<char*> argv;
  for (const std::string& word : command) argv.push_back(const_cast<char*>(word.c_str()));
  argv.push_back(nullptr);
  posix_spawnattr_t attributes;
  ::posix_spawnattr_init(&attributes);
  sigset_t all, none;
  sigfillset(&all), sigemptyset(&none);
  ::posix_spawnattr_setsigdefault(&attributes, &all);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
  pid_t pid = 0;
  const int error = ::posix_spawnp(&pid, argv.front(), nullptr, &attributes, argv.data(), environ);
  ::posix_spawnattr_destroy(&attributes);
  if (error != 0) {
    return Failure{Errc::kNotFound, "starting " + command.front() + ": " + std::strerror(error)};
  }
  for (const int signal : {SIGINT, SIGQUIT}) ::signal(signal, SIG_IGN);  // The program's.
  int status = 0;
  while (::waitpid(pid, &status, 0) < 0) {
    if (errno != EINTR) return errno_failure("waiting for the program");
  }
  return status;
}

WorkerDeath death_of(int status) {
  WorkerDeath death;
  death.signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
  death.exit_code = WIFSIGNALED(status) ? 0 : WEXITSTATUS(status);
  return death;
}

std::string bundle_text(const Bundle& bundle) {
  std::string text;
  const auto row = [&](const char* name, const std::string& value) {
    std::string line = name;
    line.resize(13, ' ');
    if (!value.empty()) text += line + plain_line(value) + "\n";
  };
  std::string command;
  for (const std::string& word : bundle.command) command += (command.empty() ? "" : " ") + word;
  row("run", bundle.run_id);
  row("who", bundle.who + ", of " + number_of(bundle.world_size, "rank"));
  row("work", bundle.work);
  row("why", bundle.why);
  row("hash", bundle.hash);
  row("command", command);
  row("folder", bundle.folder);
  row("ddprun", bundle.release + ", on " + bundle.system);
  for (const std::string& entry : bundle.environment) row("variable", entry);
  for (const Bundle::Item& item : bundle.items) {
    row("kept", item.name + ", " + std::to_string(item.bytes) + " bytes");
  }
  return text;
}

int run_replay(int argc, const char* const* argv) {
  const auto outcome = parse_replay(argc, argv);
  if (!outcome) return fail(outcome.error());
  if (const auto* print = std::get_if<PrintAndExit>(&*outcome)) {
    write_output(print->text);
    return kExitOk;
  }
  const auto& options = std::get<ReplayOptions>(*outcome);
  if (options.bisect) return run_bisect(options);
  const auto read = read_bundle(options.bundle);
  if (!read) return fail(read.error());
  const Bundle& bundle = read->bundle;
  if (options.show) {
    write_output(bundle_text(bundle));
    return kExitOk;
  }
  enter_folder(options, bundle);
  const auto command = command_of(options, bundle);
  if (!command) return fail(command.error());
  const auto progress = Report::make();  // In which the job notes that it has begun the step.
  if (!progress) return fail(progress.error());
  set_environment(options, *read);
  ::setenv(kReplayProgressVariable, progress->path().c_str(), 1);
  const auto status = run_here(*command);
  if (!status) return fail(status.error());
  const WorkerDeath death = death_of(*status);
  if (progress->is_empty()) {
    (void)fail(
        {Errc::kNotFound,
         "nothing was replayed: the program " + how_it_ended(death) +
             " before its job had begun step " + std::to_string(bundle.step) +
             ", in run(): it must get there as in the run, with the same arguments and data"});
    return death.succeeded() ? kExitFailed : exit_status(death);
  }
  // What the job has printed: its verdict, or an exception that nothing has caught.
  const bool is_printed = death.signal == 0 ? death.exit_code <= 1 : death.signal == SIGABRT;
  const bool is_crash = bundle.cause == Bundle::Cause::kCrash;
  if (is_crash ? death.signal != 0 || !is_printed : death.signal != 0 && !is_printed) {
    Replayed replayed{.work = bundle.work, .found = how_it_ended(death), .crashed = true};
    if (options.shard) replayed.work = "shard " + std::to_string(*options.shard);
    log::info(compare(bundle, replayed).text);
  }
  return exit_status(death);
}

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
  const auto report = Report::make();
  if (!report) return fail(report.error());
  const auto result = Bisection(options, std::move(*bundles), report->path()).run();
  if (!result) return fail(result.error());
  return *result ? kExitOk : kExitFailed;
}

}  // namespace ddprun::launcher
