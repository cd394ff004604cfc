// The program that process tests start as a worker: agent_test_worker <what> [arguments]. Each
// behaves badly in one way.

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

namespace {

[[noreturn]] void pause_for_ever() {
  for (;;) ::pause();
}

void print(const std::string& line, int fd = STDOUT_FILENO) {
  if (::write(fd, line.data(), line.size()) < 0) std::_Exit(99);
}

// What a worker was born with, one fact a line.
void describe(int fd) {
  std::string fds;
  DIR* dir = ::opendir("/proc/self/fd");
  while (const dirent* entry = ::readdir(dir)) {
    if (entry->d_name[0] != '.' && std::atoi(entry->d_name) != ::dirfd(dir))
      fds += std::string(" ") + entry->d_name;
  }
  ::closedir(dir);
  char target[256] = {};
  if (::readlink("/proc/self/fd/0", target, sizeof target - 1) < 0) std::_Exit(99);
  int death_signal = 0;
  ::prctl(PR_GET_PDEATHSIG, &death_signal);
  sigset_t mask;
  ::sigprocmask(SIG_SETMASK, nullptr, &mask);
  int blocked = 0, ignored = 0;
  for (int signal = 1; signal < NSIG; ++signal) {
    struct sigaction action {};
    blocked += ::sigismember(&mask, signal) == 1;
    ignored += ::sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
  }
  print("fds:" + fds + "\nstdin: " + target + "\ndeath signal: " + std::to_string(death_signal) +
            "\nown session: " + std::to_string(::getsid(0) == ::getpid()) + "\nown group: " +
            std::to_string(::getpgrp() == ::getpid()) + "\nblocked: " + std::to_string(blocked) +
            "\nignored: " + std::to_string(ignored) + "\n",
        fd);
}

void print_lines(int count, int bytes, const char* name) {
  static char buffer[1 << 16];
  std::setvbuf(stdout, buffer, _IOFBF, sizeof buffer);
  const std::string fill(static_cast<std::size_t>(bytes), 'x');
  for (int i = 0; i < count; ++i) std::printf("%s %d %s\n", name, i, fill.c_str());
  std::fflush(stdout);
}

void ignore_everything() {
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT}) ::signal(signal, SIG_IGN);
}

// A grandchild that no ancestor waits for. The child between is dead on return, and not reaped.
void double_fork(void (*body)()) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::fork() == 0) {
      body();
      std::_Exit(0);
    }
    std::_Exit(0);
  }
  siginfo_t end;
  if (::waitid(P_PID, static_cast<id_t>(child), &end, WEXITED | WNOWAIT) != 0) std::_Exit(99);
}

int family_pipe[2];  // Each member writes one byte there once it is ready.

[[noreturn]] void live_in_own_session() {
  ignore_everything();
  ::setsid();
  ::fork();
  if (::write(family_pipe[1], "x", 1) != 1) std::_Exit(99);
  pause_for_ever();
}

// Three children in sessions of their own and three daemons two forks away, one more below each,
// all deaf to SIGTERM. Returns once all twelve are there.
void start_family() {
  if (::pipe2(family_pipe, O_CLOEXEC) != 0) std::_Exit(99);
  for (int i = 0; i < 3; ++i) {
    if (::fork() == 0) live_in_own_session();
    double_fork([] { live_in_own_session(); });
  }
  char byte;
  for (int i = 0; i < 12; ++i) {
    while (::read(family_pipe[0], &byte, 1) != 1) {
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  const auto number = [&](int i) { return argc > i ? std::atoi(argv[i]) : 0; };
  if (what == "exit") return number(2);
  if (what == "signal") ::raise(number(2));
  if (what == "describe") describe(argc > 2 ? number(2) : STDOUT_FILENO);
  if (what == "lines") print_lines(number(2), number(3), argc > 4 ? argv[4] : "");
  if (what == "write") print(argv[2]);
  if (what == "write_and_die") {  // Without an end of line, on standard error.
    if (::write(STDERR_FILENO, argv[2], std::strlen(argv[2])) < 0) return 99;
    ::raise(SIGKILL);
  }
  if (what == "sleep" || what == "stubborn" || what == "family") {
    if (what != "sleep") ignore_everything();
    if (what == "family") start_family();
    if (argc > 2) print("worker " + std::to_string(::getpid()) + "\n");
    print("ready\n");
    pause_for_ever();
  }
  if (what == "leave_family") {  // Is gone before what it leaves behind.
    start_family();
    print("ready\n");
    return number(2);
  }
  if (what == "hold_output") {  // A daemon keeps the pipe open.
    double_fork([] { pause_for_ever(); });
    print("from the worker\n");
    return 0;
  }
  if (what == "brief_daemons") {  // Orphans that end by themselves, while the worker lives on.
    for (int i = 0; i < number(2); ++i) double_fork([] {});
    while (::wait(nullptr) > 0) {
    }
    print("ready\n");
    pause_for_ever();
  }
  return 0;
}
