#include "common/system/child_process.h"

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "tests/support/scratch_user.h"

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

// From here on this process has no pidfds: on a kernel before Linux 5.1 (ENOSYS), or in a container
// whose seccomp profile is older than they are (EPERM).
bool refuse_pidfds(std::uint32_t error) {
  sock_filter rules[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_send_signal, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = 5, .filter = rules};
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

void kill_and_reap(pid_t pid) {
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
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

// A process lives as long as one of its threads does, also if the first one has ended.
int broken_step_of_a_process_without_its_first_thread() {
  const pid_t pid = ::fork();
  if (pid == 0) {
    std::thread([] {
      for (;;) ::pause();
    }).detach();
    ::syscall(SYS_exit, 0);
  }
  const UniqueFd held = hold_process(pid);
  if (!held) return 1;
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  for (const TimePoint until = in(50s);;) {
    std::string number, name, state;
    std::ifstream(path) >> number >> name >> state;
    if (state == "Z") break;
    if (TimePoint::clock::now() > until) return 2;
  }
  const bool counts_as_ended = has_ended(held);
  kill_and_reap(pid);
  if (counts_as_ended) return 3;
  return has_ended(held) ? 0 : 4;
}

std::atomic<pid_t> doomed;
std::atomic<int> alarms;

// Waits while a timer interrupts it; the process ends at the fourth alarm.
int broken_step_of_a_wait_that_signals_interrupt() {
  doomed = start_sleeper();
  const UniqueFd held = hold_process(doomed);
  struct sigaction action {};
  action.sa_handler = [](int) {
    if (++alarms == 4) ::kill(doomed, SIGKILL);
  };
  ::sigaction(SIGALRM, &action, nullptr);
  const itimerval often{{.tv_sec = 0, .tv_usec = 5000}, {.tv_sec = 0, .tv_usec = 5000}};
  ::setitimer(ITIMER_REAL, &often, nullptr);
  const bool has_waited = ends_within(held, 50s);
  const itimerval never{};
  ::setitimer(ITIMER_REAL, &never, nullptr);
  kill_and_reap(doomed);
  return has_waited && alarms >= 4 ? 0 : 1;
}

// In a namespace of its own, where the next process gets the number of the one that has ended.
int broken_step_of_a_number_that_is_used_again() {
  const pid_t first = start_sleeper();
  const UniqueFd held = hold_process(first);
  kill_and_reap(first);
  std::ofstream("/proc/sys/kernel/ns_last_pid") << first - 1 << std::flush;
  const pid_t second = start_sleeper();
  if (second != first) return 1;
  if (!held || !has_ended(held)) return 2;
  if (send_signal(held, SIGKILL) || errno != ESRCH) return 3;
  const bool lives = ::waitpid(second, nullptr, WNOHANG) == 0;
  kill_and_reap(second);
  return lives ? 0 : 4;
}

constexpr int kNoNamespace = 99;

// The parent of the first process of a namespace is none of it, which fork_function() would not
// take.
int in_own_namespace(int (*body)()) {
  if (::unshare(CLONE_NEWPID | CLONE_NEWNS) != 0) return kNoNamespace;
  if (::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return kNoNamespace;
  const pid_t inner = ::fork();
  if (inner == 0) {
    ::_exit(::mount("proc", "/proc", "proc", 0, nullptr) == 0 ? body() : kNoNamespace);
  }
  int status = 0;
  if (!reap_within(inner, 50s, status)) kill_and_reap(inner);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 98;
}

// What `body` returns with pidfds (0), and without, in forks.
int exit_code_of(const std::function<int()>& body, std::uint32_t refusal) {
  auto child = fork_function([&] {
    if (refusal == 0) return body();
    if (!refuse_pidfds(refusal) || hold_process(::getpid()).get() < 0) return 100;
    return open_pidfd(::getpid()) ? 101 : body();
  });
  return child.has_value() ? reap_within(*child, 50s).value_or(102) : 103;
}

TEST_CASE("Held process: its signals and its end, with a pidfd and without", "[hosts]") {
  const std::uint32_t refusal = GENERATE(0U, std::uint32_t{ENOSYS}, std::uint32_t{EPERM});
  CAPTURE(refusal);
  CHECK(exit_code_of(broken_step_of_a_held_process, refusal) == 0);
  CHECK(exit_code_of(broken_step_of_a_process_without_its_first_thread, refusal) == 0);
  CHECK(exit_code_of(broken_step_of_a_wait_that_signals_interrupt, refusal) == 0);
}

TEST_CASE("Held process: its number may become another's, which gets no signal", "[hosts]") {
  if (::geteuid() != 0) return test::skip("needs root");
  const std::uint32_t refusal = GENERATE(0U, std::uint32_t{ENOSYS});
  const int code = exit_code_of(
      [] { return in_own_namespace(broken_step_of_a_number_that_is_used_again); }, refusal);
  if (code == kNoNamespace) return test::skip("needs namespaces");
  CHECK(code == 0);
}

}  // namespace
}  // namespace ddprun
