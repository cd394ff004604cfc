#include "agent/process/proc_file.h"

#include <signal.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "common/system/child_process.h"
#include "common/system/secrets.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

// A /proc with one process.
struct FakeProc {
  fs::path root = fs::temp_directory_path() / ("ddprun-proc-" + random_hex(6));
  FakeProc(const std::string& stat, const std::string& wchan) {
    fs::create_directories(root / "4711");
    std::ofstream(root / "4711" / "stat") << stat;
    if (!wchan.empty()) std::ofstream(root / "4711" / "wchan") << wchan;
  }
  ~FakeProc() { fs::remove_all(root); }
};

TEST_CASE("Proc: a process in uninterruptible sleep is named with what it waits in", "[proc]") {
  const FakeProc nfs("4711 (python3) D 12 4711 4711 0 -1", "nfs_wait_bit_killable");
  CHECK(describe_process(4711, nfs.root) ==
        "pid 4711 (python3), state D (uninterruptible sleep in nfs_wait_bit_killable)");
  const FakeProc hidden("4711 (python3) D 12 4711", "0");  // As it reads for other users.
  CHECK(describe_process(4711, hidden.root) ==
        "pid 4711 (python3), state D (uninterruptible sleep)");
  const FakeProc asleep("4711 (sh) S 12 4711", "do_wait");
  CHECK(describe_process(4711, asleep.root) == "pid 4711 (sh), state S");
  CHECK(describe_process(4712, asleep.root) == "pid 4712 (), state ?");
}

TEST_CASE("Proc: group, session and birth", "[proc]") {
  const ProcStat stat = parse_proc_stat(
      "5 (a b) S 77 6 7 0 -1 4194560 100 0 0 0 1 2 0 0 20 0 1 0 123456 2666496 200 1844674407");
  CHECK(stat.parent == 77);
  CHECK(stat.group == 6);
  CHECK(stat.session == 7);
  CHECK(stat.started == 123456);
}

TEST_CASE("Proc: a name may hold anything", "[proc]") {
  const ProcStat stat = parse_proc_stat("5 (a) b) (c)) T 77 5 5");
  CHECK(stat.name == "a) b) (c)");
  CHECK(stat.state == 'T');
  CHECK(stat.parent == 77);
  CHECK(stat.started == 0);  // Cut off.
  const ProcStat whole = parse_proc_stat(
      "5 (x y) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4711 20 300 18446744073709551615");
  CHECK(whole.started == 4711);
  CHECK(whole.ran == 11 + 12);
  CHECK(whole.resident == 300);
  for (const char* cut : {"", "5", "5 (", "5 (a", "5 (a)", "5 (a) ", ") ("}) {
    CHECK(parse_proc_stat(cut).state == '?');
  }
}

TEST_CASE("Proc: whether a process is on its way out, or halted", "[proc]") {
  const auto exiting = [](const char* text) { return parse_proc_stat(text).exiting; };
  CHECK_FALSE(exiting("5 (a) S 77 5 5 0 -1 4194304 10"));
  CHECK(exiting("5 (a) R 77 5 5 0 -1 4194308 10"));  // PF_EXITING.
  CHECK(exiting("5 (a) Z 77 5 5 0 -1"));
  CHECK_FALSE(exiting("5 (a) S 77"));
  CHECK(is_halted('T'));
  CHECK(is_halted('t'));
  CHECK_FALSE(is_halted('S'));
}

TEST_CASE("Proc: our own entries are read", "[proc]") {
  CHECK_FALSE(read_proc_stat(::getpid()).exiting);
  CHECK(read_proc_stat(::getpid()).parent == ::getppid());
  CHECK(read_proc_file("/proc/self/no-such").empty());
  CHECK(numbered_entries("/no/such").empty());
  CHECK_FALSE(numbered_entries("/proc/self/task").empty());
}

TEST_CASE("Reap: a child that does not end is waited for as long as was said", "[process]") {
  const pid_t pid = ::fork();
  if (pid == 0) {
    for (;;) ::pause();
  }
  int status = 0;
  CHECK_FALSE(reap_within(pid, std::chrono::milliseconds(20), status));
  ::kill(pid, SIGKILL);
  CHECK(reap_within(pid, std::chrono::seconds(50), status));
  CHECK(WTERMSIG(status) == SIGKILL);
  CHECK(reap_within(pid, std::chrono::seconds(50), status));  // Something else has reaped it.
}

}  // namespace
}  // namespace ddprun::agent
