#include "launcher/slurm/slurm.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>

#include "common/exit_status.h"
#include "common/system/child_process.h"
#include "common/system/descriptors.h"
#include "common/system/log.h"
#include "common/system/own_process.h"
#include "common/system/standard_output.h"
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
      return false;  // sbatch has refused its options, and says why.
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

class SlurmRun {
 public:
  explicit SlurmRun(const SlurmOptions& options) : options_(options), program_(own_program()) {}

  Result<void> submit_all() {
    run_ = options_.join;
    if (!options_.daemon_on.empty()) {
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

 private:
  // What has been submitted before a job is refused.
  std::string submitted() const {
    if (jobs_.empty()) return "";
    std::string text = "; submitted before it:";
    for (const std::string& number : jobs_) text += " " + number;
    const bool is_run =
        !options_.join.empty() || jobs_.size() > (options_.daemon_on.empty() ? 0 : 1);
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
    if (number) jobs_.push_back(*number);
    return number;
  }

  static void write_errors(const std::string& text) { (void)write_all(STDERR_FILENO, text); }

  const SlurmOptions& options_;
  const std::string program_;
  std::string run_;  // What --join takes: the first job, or the daemon's.
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
    write_output(dry_run_text(options, own_program()));
    return kExitOk;
  }
  ::signal(SIGPIPE, SIG_IGN);  // sbatch may refuse before it has read the script.
  const auto done = SlurmRun(options).submit_all();
  if (done) return kExitOk;
  log::error(done.error().context);
  return kExitFailed;
}

}  // namespace ddprun::launcher
