#include "common/system/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "common/exit_status.h"
#include "common/system/child_process.h"
#include "common/system/descriptors.h"

namespace ddprun {
namespace {

struct Pipe {
  UniqueFd reader, writer;
};

Result<Pipe> make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return errno_failure("making a pipe to a child process");
  return Pipe{UniqueFd(ends[0]), UniqueFd(ends[1])};
}

void unblock(const UniqueFd& fd) {
  ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
}

// Attributes and file actions of posix_spawn, freed with it.
struct SpawnPlan {
  SpawnPlan(const Pipe& input, const Pipe& output, const Pipe& errors,
            const ProgramOptions& options) {
    const Pipe& for_errors = options.errors_in_output ? output : errors;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, input.reader.get(), STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, output.writer.get(), STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, for_errors.writer.get(), STDERR_FILENO);
    ::posix_spawnattr_init(&attributes);
    sigset_t none, all;
    ::sigemptyset(&none);
    ::sigfillset(&all);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setsigdefault(&attributes, &all);
    ::posix_spawnattr_setpgroup(&attributes, 0);
    short flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF;
    if (options.own_group) flags = static_cast<short>(flags | POSIX_SPAWN_SETPGROUP);
    ::posix_spawnattr_setflags(&attributes, flags);
  }
  ~SpawnPlan() {
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
  }
  SpawnPlan(const SpawnPlan&) = delete;
  SpawnPlan& operator=(const SpawnPlan&) = delete;

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
};

}  // namespace

Result<ChildProcess> start_program(const std::vector<std::string>& argv,
                                   const ProgramOptions& options) {
  auto input = make_pipe();
  auto output = make_pipe();
  auto errors = make_pipe();
  for (const auto* pipe : {&input, &output, &errors}) {
    if (!*pipe) return pipe->error();
  }
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const SpawnPlan plan(*input, *output, *errors, options);
  ChildProcess process;
  const int error = ::posix_spawnp(&process.pid, words[0], &plan.actions, &plan.attributes,
                                   words.data(), ::environ);
  if (error != 0) {
    errno = error;
    return errno_failure("starting " + argv[0]);
  }
  process.pidfd = open_pidfd(process.pid);
  if (!process.pidfd && has_pidfds()) {  // Its end would not be noticed.
    const Failure failure = errno_failure("watching " + argv[0]);
    ::kill(process.pid, SIGKILL);
    (void)reap(process);
    return failure;
  }
  process.input = std::move(input->writer);
  process.output = std::move(output->reader);
  process.errors = std::move(errors->reader);
  for (const UniqueFd* fd : {&process.input, &process.output, &process.errors}) unblock(*fd);
  return process;
}

Result<ChildProcess> fork_function(const std::function<int()>& body) {
  std::fflush(nullptr);  // Or the child would write it again.
  const pid_t parent = ::getpid();
  ChildProcess process;
  process.pid = ::fork();
  if (process.pid < 0) return errno_failure("starting a process");
  if (process.pid == 0) {
    ::setpgid(0, 0);
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(EXIT_FAILURE);
    ::signal(SIGPIPE, SIG_IGN);
    ::_exit(body());
  }
  process.pidfd = open_pidfd(process.pid);
  return process;
}

Result<ChildProcess> fork_answer(const std::function<std::string()>& body) {
  auto pipe = make_pipe();
  if (!pipe) return pipe.error();
  auto process = fork_function(
      [&] { return write_all(pipe->writer.get(), body()) ? EXIT_SUCCESS : EXIT_FAILURE; });
  if (!process) return process;
  process->output = std::move(pipe->reader);
  unblock(process->output);
  return process;
}

void kill(const ChildProcess& process) {
  if (!process.runs()) return;
  ::kill(-process.pid, SIGKILL);  // The process may be about to make its group.
  ::kill(process.pid, SIGKILL);
}

int reap(ChildProcess& process) {
  siginfo_t info{};
  bool seen = false;
  while (!(seen = ::waitid(P_PID, static_cast<id_t>(process.pid), &info, WEXITED) == 0) &&
         errno == EINTR) {
  }
  process.pidfd.reset();
  process.pid = 0;
  if (!seen) return kExitFailed;
  return info.si_code == CLD_EXITED ? info.si_status : exit_code_of_signal(info.si_status);
}

std::optional<int> reap_within(ChildProcess& process, Milliseconds limit) {
  int status = 0;
  if (!reap_within(process.pid, limit, status)) return std::nullopt;
  process.pidfd.reset();
  process.pid = 0;
  return WIFEXITED(status) ? WEXITSTATUS(status) : exit_code_of_signal(WTERMSIG(status));
}

PipedAnswer read_until(const UniqueFd& pipe, TimePoint until, std::size_t bytes_max) {
  PipedAnswer answer;
  char block[65'536];
  for (;;) {
    pollfd ready{pipe.get(), POLLIN, 0};
    poll_until({&ready, 1}, until);
    if (ready.revents == 0 && TimePoint::clock::now() < until) continue;
    answer.in_time = ready.revents != 0;
    if (!answer.in_time) return answer;
    const ssize_t n = ::read(pipe.get(), block, sizeof block);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) return answer;
    if (answer.text.size() < bytes_max) answer.text.append(block, static_cast<std::size_t>(n));
  }
}

}  // namespace ddprun
