#include "launcher/slurm/slurm.h"

#include <poll.h>
#include <signal.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <fstream>

#include "common/exit_status.h"
#include "common/system/child_process.h"
#include "common/system/descriptors.h"
#include "common/system/folder.h"
#include "common/system/log.h"
#include "common/system/own_process.h"
#include "common/system/secrets.h"
#include "common/system/standard_output.h"
#include "common/system/user_file.h"
#include "launcher/run/launch.h"
#include "launcher/slurm/submission.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;

constexpr auto kLimit = 120s;  // sbatch itself repeats its question to a busy controller.
constexpr std::size_t kAnswerBytesMax = 64 * 1024;

struct Answer {
  int code = 0;
  std::string output, errors;
};

// The script is longer than a pipe may hold, if it has very many arguments.
bool write_script(const UniqueFd& pipe, std::string_view text, TimePoint until) {
  while (!text.empty()) {
    const ssize_t n = ::write(pipe.get(), text.data(), text.size());
    if (n > 0) {
      text.remove_prefix(static_cast<std::size_t>(n));
    } else if (n < 0 && errno == EAGAIN && TimePoint::clock::now() < until) {
      pollfd ready{pipe.get(), POLLOUT, 0};
      poll_until({&ready, 1}, until);
    } else if (n == 0 || errno != EINTR) {
      return false;  // sbatch has refused its options, with a reason.
    }
  }
  return true;
}

Result<Answer> submit(const Submission& job) {
  const auto until = TimePoint::clock::now() + kLimit;
  auto sbatch = start_program(job.sbatch, {.own_group = false});
  if (!sbatch) {
    return Failure{Errc::kNotFound,
                   "starting sbatch: " + sbatch.error().code.message() +
                       "; run this where Slurm's commands are, such as the login node, or give "
                       "--dry-run to see the script"};
  }
  (void)write_script(sbatch->input, job.script, until);
  sbatch->input.reset();
  Answer answer;
  PipedAnswer output = read_until(sbatch->output, until, kAnswerBytesMax);
  PipedAnswer errors = read_until(sbatch->errors, until, kAnswerBytesMax);
  if (!output.in_time || !errors.in_time) {
    kill(*sbatch);
    reap(*sbatch);
    return Failure{Errc::kPeerSilent,
                   "sbatch has not answered within 120 s: see `scontrol ping`, and `squeue --me` "
                   "before you try again"};
  }
  answer.code = reap(*sbatch);
  answer.output = std::move(output.text), answer.errors = std::move(errors.text);
  return answer;
}

// "login1-c0ffee": of a run whose daemon is on this host.
std::string new_run_name() {
  utsname machine{};
  std::string host = ::uname(&machine) == 0 ? machine.nodename : "";
  host = host.substr(0, host.find('.'));
  std::string name = host + "-" + random_hex(3);
  return is_run_name(name) ? name : "host-" + random_hex(3);
}

// Where the scripts keep what the jobs of a run share: see deploy/slurm.
std::string folder_of_run(const std::string& run, const Environment& environment) {
  const std::string runs = value_of(environment, "RUNS");
  return (runs.empty() ? value_of(environment, "HOME") + "/.ddprun-runs" : runs) + "/slurm-" + run;
}

// The daemon of --daemon-on this-host: the script runs in the background, outlives this process and
// its terminal, and removes the folder when it ends, which it does once no job of the run is left.
class DaemonHere {
 public:
  DaemonHere() = default;
  explicit DaemonHere(std::string folder) : folder_(std::move(folder)) {}

  Result<void> start(const std::string& name, const std::string& script) const {
    const std::string file = folder_ + "/daemon.sh", log = "ddprun-daemon-" + name + ".out";
    errno = make_folders(folder_ + "/jobs", 0700);
    if (errno != 0) return errno_failure("making the folder " + folder_);
    if (const auto written = write_user_file(file, script); !written) return written.error();
    auto started = start_program(
        {"setsid", "--fork", "bash", "-c", "exec bash \"$0\" >\"$1\" 2>&1 </dev/null", file, log});
    if (!started) return started.error();
    reap(*started);
    const auto until = TimePoint::clock::now() + kStartLimit;
    while (!has("/endpoint") && has("/daemon.sh") && TimePoint::clock::now() < until) {
      ::poll(nullptr, 0, kLookMs);
    }
    if (has("/endpoint")) {
      log::info("the daemon of this run is on this host; what it prints goes to " + log);
      return {};
    }
    end();
    return Failure{Errc::kNotFound, "the daemon did not start on this host: see " + log};
  }

  // A job of the run: the daemon lives until all that are noted have ended.
  void note(const std::string& job) const {
    if (!folder_.empty()) std::ofstream(folder_ + "/jobs/" + job);
  }

  void end() const {
    int pid = 0;
    std::ifstream(folder_ + "/pid") >> pid;
    if (pid > 0) ::kill(pid, SIGTERM);
  }

  bool is_there() const { return has("/endpoint"); }

 private:
  static constexpr auto kStartLimit = 20s;
  static constexpr int kLookMs = 20;

  bool has(const char* name) const { return ::access((folder_ + name).c_str(), F_OK) == 0; }

  std::string folder_;  // Empty: there is none.
};

class SlurmRun {
 public:
  SlurmRun(const SlurmOptions& options, const Environment& environment)
      : options_(options), environment_(environment), program_(own_program()) {}

  Result<void> submit_all() {
    run_ = options_.join;
    if (options_.has_daemon_here()) {
      const std::string name = new_run_name();
      here_ = DaemonHere(folder_of_run(name, environment_));
      if (auto started = here_.start(name, daemon_script(program_, name)); !started) return started;
      run_ = name;
    } else if (is_run_name(run_)) {
      const std::string folder = folder_of_run(run_, environment_);
      here_ = DaemonHere(folder);
      if (!here_.is_there()) {
        return Failure{Errc::kNotFound, "there is no run " + run_ + ": its daemon has ended, or " +
                                            folder + " is not where it was started (RUNS)"};
      }
    }
    auto done = submit_jobs();
    if (options_.has_daemon_here() && jobs_.empty()) here_.end();
    return done;
  }

 private:
  Result<void> submit_jobs() {
    if (has_daemon_job()) {
      const auto number = submit_one(daemon_job(options_, program_));
      if (!number) return number.error();
      if (!*number) return {};  // With --test-only.
      run_ = **number;
    }
    if (options_.join.empty()) {
      const auto number = submit_one(first_job(options_, program_, run_));
      if (!number) return number.error();
      if (!*number) return {};
      if (run_.empty()) run_ = **number;
    }
    for (int i = 0; i < joining_jobs(options_); ++i) {
      const auto number = submit_one(joining_job(options_, program_, run_));
      if (!number) return number.error();
      if (!*number) return {};
    }
    write_errors(hints(options_, run_, jobs_));
    return {};
  }

  bool has_daemon_job() const { return !options_.daemon_on.empty() && !options_.has_daemon_here(); }

  // What has been submitted before a job is refused.
  std::string submitted() const {
    if (jobs_.empty()) return "";
    std::string text = "; submitted before it:";
    for (const std::string& number : jobs_) text += " " + number;
    const bool is_run = !options_.join.empty() || jobs_.size() > (has_daemon_job() ? 1 : 0);
    if (is_run) return text + " (`ddprun slurm --join " + run_ + "` adds one more)";
    return text + " (the daemon's, which waits for the run: `scancel " + run_ + "`)";
  }

  Result<std::optional<std::string>> submit_one(const Submission& job) {
    const auto answer = submit(job);
    if (!answer) return answer.error();
    if (answer->code != 0) {
      return Failure{Errc::kNotFound,
                     "sbatch refused the job: " + plain_refusal(answer->errors) + submitted()};
    }
    write_errors(answer->errors);  // Warnings.
    auto number = job_number(answer->output);
    write_output(number ? "Submitted batch job " + *number + "\n" : answer->output);
    if (number) jobs_.push_back(*number), here_.note(*number);
    return number;
  }

  static void write_errors(const std::string& text) { (void)write_all(STDERR_FILENO, text); }

  const SlurmOptions& options_;
  const Environment& environment_;
  const std::string program_;
  DaemonHere here_;
  std::string run_;  // What --join takes: the first job, or the daemon's, or the run's name.
  std::vector<std::string> jobs_;
};

}  // namespace

int run_slurm(int argc, const char* const* argv, const Environment& environment) {
  const auto outcome = parse_slurm(argc, argv, environment);
  if (!outcome) return fail(outcome.error());
  if (const auto* print = std::get_if<PrintAndExit>(&*outcome)) {
    write_output(print->text);
    return kExitOk;
  }
  const auto& options = std::get<SlurmOptions>(*outcome);
  if (options.dry_run) {
    write_output(dry_run_text(options, own_program(), new_run_name()));
    return kExitOk;
  }
  ::signal(SIGPIPE, SIG_IGN);  // sbatch may refuse before it has read the script.
  const auto done = SlurmRun(options, environment).submit_all();
  if (done) return kExitOk;
  log::error(done.error().context);
  return kExitFailed;
}

}  // namespace ddprun::launcher
