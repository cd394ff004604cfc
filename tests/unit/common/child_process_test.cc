#include "common/system/child_process.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>

namespace ddprun {
namespace {

using namespace std::chrono_literals;

constexpr std::size_t kBytesMax = 1 << 20;

TimePoint in(Milliseconds limit) { return TimePoint::clock::now() + limit; }

TEST_CASE("Child process: one whose end could not be noticed is not left running", "[hosts]") {
  const std::vector<std::string> command = {"/bin/sleep", "600"};
  // UBSan needs descriptors of its own when it first looks at an error.
  CHECK(start_program({"/no/such/program"}).has_error());
  std::vector<UniqueFd> free(6);  // For the pipes, and for nothing else.
  for (UniqueFd& fd : free) fd = UniqueFd(::dup(0));
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_NOFILE, &before) == 0);
  const rlimit few{static_cast<rlim_t>(free.back().get()) + 1, before.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &few) == 0);
  free.clear();
  auto process = start_program(command);
  REQUIRE(::setrlimit(RLIMIT_NOFILE, &before) == 0);
  REQUIRE(process.has_error());
  CHECK_THAT(to_string(process.error()), Catch::Contains("watching /bin/sleep"));
  CHECK((::waitpid(-1, nullptr, WNOHANG) < 0 && errno == ECHILD));
}

TEST_CASE("Child process: a long answer of a fork arrives whole", "[hosts]") {
  auto child = fork_answer([] { return std::string(300'000, 'x'); });
  REQUIRE(child.has_value());
  const PipedAnswer answer = read_until(child->output, in(50s), kBytesMax);
  CHECK(answer.in_time);
  CHECK(answer.text == std::string(300'000, 'x'));
  CHECK(reap_within(*child, 50s) == 0);
  CHECK_FALSE(child->runs());
}

TEST_CASE("Child process: a fork that does not answer is given up at the deadline", "[hosts]") {
  auto child = fork_answer([]() -> std::string {
    for (;;) ::pause();
  });
  REQUIRE(child.has_value());
  CHECK_FALSE(read_until(child->output, in(20ms), kBytesMax).in_time);
  CHECK_FALSE(reap_within(*child, 0ms));
  kill(*child);
  CHECK(reap_within(*child, 50s) == 128 + SIGKILL);
}

TEST_CASE("Child process: a program's errors go to its output on request", "[hosts]") {
  const std::vector<std::string> command = {"/bin/sh", "-c", "echo out; echo err >&2; exit 7"};
  auto both = start_program(command, {.errors_in_output = true});
  REQUIRE(both.has_value());
  CHECK(read_until(both->output, in(50s), kBytesMax).text == "out\nerr\n");
  CHECK(reap_within(*both, 50s) == 7);
  auto apart = start_program(command);
  REQUIRE(apart.has_value());
  CHECK(read_until(apart->output, in(50s), 2).text ==
        "out\n");  // Whole pieces, no more after them.
  CHECK(read_until(apart->errors, in(50s), kBytesMax).text == "err\n");
  CHECK(reap_within(*apart, 50s) == 7);
}

// From here on this process is on a kernel before Linux 5.1, as far as the calls tell.
bool refuse_pidfds() {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JGE | BPF_K, SYS_pidfd_send_signal, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = 4, .filter = rules};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

pid_t start_sleeper() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (;;) ::pause();
  }
  return pid;
}

// The number of the first step that does not hold; 0: all do.
int broken_step_of_a_held_process() {
  const pid_t pid = start_sleeper();
  const UniqueFd held = hold_process(pid);
  if (!held) return 1;
  if (has_ended(held) || child_has_ended(pid, UniqueFd())) return 2;
  if (!send_signal(held, 0)) return 3;
  if (!send_signal(held, SIGKILL) || !ends_within(held, 50s)) return 4;
  if (!child_has_ended(pid, UniqueFd())) return 5;  // Nobody has reaped it.
  int status = 0;
  if (::waitpid(pid, &status, 0) != pid || WTERMSIG(status) != SIGKILL) return 6;
  if (!has_ended(held) || !child_has_ended(pid, UniqueFd())) return 7;
  if (send_signal(held, 0) || errno != ESRCH) return 8;
  if (hold_process(pid) || errno != ESRCH) return 9;
  return 0;
}

TEST_CASE("Held process: its signals and its end, with a pidfd and without", "[hosts]") {
  CHECK(broken_step_of_a_held_process() == 0);
  auto old = fork_function([] {
    if (!refuse_pidfds() || hold_process(::getpid()).get() < 0) return 100;
    return open_pidfd(::getpid()) ? 101 : broken_step_of_a_held_process();
  });
  REQUIRE(old.has_value());
  CHECK(reap_within(*old, 50s) == 0);
}

}  // namespace
}  // namespace ddprun
