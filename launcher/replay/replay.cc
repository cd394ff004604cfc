#include "launcher/replay/replay.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <utility>

#include "agent/node/command.h"
#include "common/exit_status.h"
#include "common/replay_progress.h"
#include "common/system/descriptors.h"
#include "common/system/log.h"
#include "common/system/standard_output.h"
#include "common/text/display.h"
#include "common/text/figures.h"
#include "launcher/replay/bisect.h"
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

// Those of the only rank of a run, as its job is: a program that reads them works, and a group
// that it makes itself waits for nobody and meets no rank of the run.
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

// The file in which the job notes that it has begun the step.
class Progress {
 public:
  static Result<Progress> make() {
    std::error_code error;
    Progress progress;
    progress.path_ =
        (std::filesystem::temp_directory_path(error) / "ddprun-replay-XXXXXX").string();
    const UniqueFd file(::mkostemp(progress.path_.data(), O_CLOEXEC));
    if (!file) return errno_failure("making " + std::exchange(progress.path_, ""));
    return progress;
  }
  Progress(Progress&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  Progress& operator=(Progress&&) = delete;
  ~Progress() {
    if (!path_.empty()) ::unlink(path_.c_str());
  }

  const std::string& path() const { return path_; }
  bool has_begun() const {
    struct stat found {};
    return ::stat(path_.c_str(), &found) == 0 && found.st_size > 0;
  }

 private:
  Progress() = default;
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
  const auto progress = Progress::make();
  if (!progress) return fail(progress.error());
  set_environment(options, *read);
  ::setenv(kReplayProgressVariable, progress->path().c_str(), 1);
  const auto status = run_here(*command);
  if (!status) return fail(status.error());
  const WorkerDeath death = death_of(*status);
  if (!progress->has_begun()) {
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

}  // namespace ddprun::launcher
