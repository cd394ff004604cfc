#include "launcher/hosts/piped_process.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>

#include "common/exit_status.h"
#include "common/system/child.h"

namespace ddprun::launcher {
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
  SpawnPlan(const Pipe& input, const Pipe& output, const Pipe& errors) {
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, input.reader.get(), STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, output.writer.get(), STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, errors.writer.get(), STDERR_FILENO);
    ::posix_spawnattr_init(&attributes);
    sigset_t none, all;
    ::sigemptyset(&none);
    ::sigfillset(&all);
    ::posix_spawnattr_setsigmask(&attributes, &none);
    ::posix_spawnattr_setsigdefault(&attributes, &all);
    ::posix_spawnattr_setpgroup(&attributes, 0);
    ::posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
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

Result<PipedProcess> start_piped(const std::vector<std::string>& argv) {
  auto input = make_pipe();
  auto output = make_pipe();
  auto errors = make_pipe();
  for (const auto* pipe : {&input, &output, &errors}) {
    if (!*pipe) return pipe->error();
  }
  std::vector<char*> words;
  for (const std::string& word : argv) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const SpawnPlan plan(*input, *output, *errors);
  PipedProcess process;
  const int error = ::posix_spawnp(&process.pid, words[0], &plan.actions, &plan.attributes,
                                   words.data(), ::environ);
  if (error != 0) {
    errno = error;
    return errno_failure("starting " + argv[0]);
  }
  process.pidfd = open_pidfd(process.pid);
  if (!process.pidfd) {  // Its end would not be noticed.
    const Failure failure = pidfd_failure("watching " + argv[0]);
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

int reap(PipedProcess& process) {
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

}  // namespace ddprun::launcher
