#include "agent/workers/child_start.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <set>

#include "common/system/secrets.h"
#include "tests/process/agent/processes.h"

namespace ddprun::agent {
namespace {

const std::string kWorker = AGENT_TEST_WORKER;

Spawner spawner;

Result<SpawnedProcess> spawn_process(const WorkerSpec& spec) { return spawner.spawn(spec); }

// Runs it to its end; what it wrote to both streams.
std::string output_of(std::vector<std::string> argv, int* status = nullptr) {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  const WorkerSpec spec{0, std::move(argv), {"ONLY=this"}, writing.get(), writing.get()};
  const SpawnedProcess process = spawn_process(spec).value();
  writing.reset();
  std::string text;
  char block[4096];
  for (ssize_t got = 0; (got = ::read(reading.get(), block, sizeof block)) > 0;) {
    text.append(block, static_cast<std::size_t>(got));
  }
  int raw = 0;
  REQUIRE(::waitpid(process.pid, &raw, 0) == process.pid);
  if (status) *status = raw;
  return text;
}

std::string error_of(const std::string& path) {
  const auto result = spawn_process({.local_rank = 3, .argv = {path}, .environment = {}});
  REQUIRE(result.has_error());
  return to_string(result.error());
}

TEST_CASE("Spawn: a worker is bound before it begins, and a processor that is not there is said",
          "[spawn]") {
  cpu_set_t ours;
  REQUIRE(::sched_getaffinity(0, sizeof ours, &ours) == 0);
  int first = 0;
  while (!CPU_ISSET(first, &ours)) ++first;
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reading(ends[0]);
  UniqueFd writing(ends[1]);
  WorkerSpec spec{.argv = {"/bin/grep", "Cpus_allowed_list", "/proc/self/status"},
                  .environment = {},
                  .stdout_fd = writing.get(),
                  .processors = {first}};
  const SpawnedProcess process = spawn_process(spec).value();
  writing.reset();
  char line[64] = {};
  REQUIRE(::read(reading.get(), line, sizeof line - 1) > 0);
  CHECK(line == "Cpus_allowed_list:\t" + std::to_string(first) + "\n");
  REQUIRE(::waitpid(process.pid, nullptr, 0) == process.pid);
  spec.stdout_fd = -1;
  spec.processors = {8000};
  CHECK(to_string(spawn_process(spec).error()) ==
        "starting local rank 0: binding to processors: Invalid argument");
}

TEST_CASE("Spawn: a worker is born clean", "[spawn]") {
  // What a careless agent may carry around.
  const UniqueFd leaky(::open("/dev/null", O_RDONLY));
  ::signal(SIGHUP, SIG_IGN);
  sigset_t blocked, before;
  ::sigemptyset(&blocked);
  ::sigaddset(&blocked, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &blocked, &before);
  const std::string facts = output_of({kWorker, "describe"});
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  ::signal(SIGHUP, SIG_DFL);
  CHECK(facts ==
        "fds: 0 1 2\nstdin: /dev/null\ndeath signal: 9\nown session: 1\nown group: 1\n"
        "blocked: 0\nignored: 0\n");
}

TEST_CASE("Spawn: a worker is born clean, too, where our table has no room for slots", "[spawn]") {
  const UniqueFd leaky(::open("/dev/null", O_RDONLY));
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reading(ends[0]), writing(ends[1]);
  const WorkerSpec spec{0, {kWorker, "describe"}, {}, writing.get(), writing.get()};
  const int before = test::open_descriptors();
  ChildStart starting(spec, {}, StartBatch(), 0);
  const auto process = starting.finish();
  REQUIRE(process.has_value());
  char facts[256] = {};
  REQUIRE(::read(reading.get(), facts, sizeof facts - 1) > 0);
  CHECK(std::string(facts).starts_with("fds: 0 1 2\nstdin: /dev/null\n"));
  REQUIRE(::waitpid(process->pid, nullptr, 0) == process->pid);
  CHECK(test::open_descriptors() == before + 1);  // Its pidfd.
}

TEST_CASE("Spawn: those that are born at once have slots of their own, above a worker's numbers",
          "[spawn]") {
  const EndSlots slots(4);
  std::set<int> numbers;
  for (std::size_t child = 0; child < 4; ++child) {
    REQUIRE(slots.of_child(child));
    for (const int number : *slots.of_child(child)) {
      CHECK(number > kLinkDescriptor);
      CHECK(static_cast<unsigned>(number) < slots.table_end());
      CHECK(numbers.insert(number).second);
    }
  }
  CHECK(slots.of_child(4) == slots.of_child(0));
}

TEST_CASE("Spawn: of those that are born at once each has its own ends, and nobody else has them",
          "[spawn]") {
  constexpr int kWorkers = 11;
  std::vector<UniqueFd> readings;
  for (int i = 0; i < kWorkers; ++i) {
    int out[2], err[2];
    REQUIRE((::pipe2(out, O_CLOEXEC) == 0 && ::pipe2(err, O_CLOEXEC) == 0));
    readings.emplace_back(out[0]), readings.emplace_back(err[0]);
    const std::string number = std::to_string(i);
    const std::string script =
        "echo out " + number + "; echo err " + number + " >&2; exec " + kWorker + " describe";
    REQUIRE(spawner.add({i, {"/bin/sh", "-c", script}, {}}, {UniqueFd(out[1]), UniqueFd(err[1])}));
  }
  const auto processes = spawner.finish();
  REQUIRE(processes.size() == kWorkers);
  for (int i = 0; i < kWorkers; ++i) {
    std::string text[2];
    for (int stream : {0, 1}) {
      char block[512];
      const int fd = readings[static_cast<std::size_t>(2 * i + stream)].get();
      for (ssize_t got = 0; (got = ::read(fd, block, sizeof block)) > 0;) {
        text[stream].append(block, static_cast<std::size_t>(got));
      }
    }
    CHECK(text[0].starts_with("out " + std::to_string(i) + "\nfds: 0 1 2\n"));
    CHECK(text[1] == "err " + std::to_string(i) + "\n");
    const auto& process = processes[static_cast<std::size_t>(i)];
    REQUIRE(process.has_value());
    REQUIRE(::waitpid(process->pid, nullptr, 0) == process->pid);
  }
}

TEST_CASE("Spawn: a worker's link is its descriptor 3, and the only one above its streams",
          "[spawn]") {
  int link[2];
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link) == 0);
  const UniqueFd ours(link[0]), leaky(::open("/dev/null", O_RDONLY));
  UniqueFd theirs(link[1]);
  if (GENERATE(false, true)) theirs.reset(::fcntl(link[1], F_DUPFD_CLOEXEC, 100));
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reading(ends[0]), writing(ends[1]);
  const std::string script = "printf hello >&3; exec " + kWorker + " describe";
  const auto process = spawn_process({.argv = {"/bin/sh", "-c", script},
                                      .environment = {},
                                      .stdout_fd = writing.get(),
                                      .link_fd = theirs.get()});
  REQUIRE(process.has_value());
  theirs.reset();
  char text[16] = {};
  CHECK(::recv(ours.get(), text, sizeof text, 0) == 5);
  CHECK(std::string(text) == "hello");
  char facts[256] = {};
  REQUIRE(::read(reading.get(), facts, sizeof facts - 1) > 0);
  CHECK(std::string(facts).starts_with("fds: 0 1 2 3\n"));
  REQUIRE(::waitpid(process->pid, nullptr, 0) == process->pid);
}

TEST_CASE("Spawn: a link may come from where a stream goes", "[spawn]") {
  int ends[2], link[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, link) == 0);
  const UniqueFd reading(ends[0]), ours(link[0]), out(::dup(1)), was_third(::dup(3));
  const bool had_third = static_cast<bool>(was_third);
  ::dup2(link[1], 1);  // Ours for a moment: 1 is the link, and 3 the pipe.
  ::dup2(ends[1], 3);
  const auto process = spawn_process(
      {.argv = {kWorker, "write", "crossed\n"}, .environment = {}, .stdout_fd = 3, .link_fd = 1});
  ::dup2(out.get(), 1);
  had_third ? ::dup2(was_third.get(), 3) : ::close(3);
  if (ends[1] != 3) ::close(ends[1]);
  if (link[1] != 3) ::close(link[1]);
  REQUIRE(process.has_value());
  char block[64] = {};
  CHECK(::read(reading.get(), block, sizeof block) == 8);
  CHECK(std::string(block) == "crossed\n");
  ::waitpid(process->pid, nullptr, 0);
}

TEST_CASE("Spawn: the environment is what was given and nothing else", "[spawn]") {
  CHECK(output_of({"/usr/bin/env"}) == "ONLY=this\n");
}

TEST_CASE("Spawn: any descriptor may be given as standard output and error, even each other's",
          "[spawn]") {
  int ends[2];
  REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
  const UniqueFd reading(ends[0]), out(::dup(1)), err(::dup(2));
  ::dup2(ends[1], 2);  // Ours for a moment: 2 is the pipe.
  const auto process = spawn_process({0, {kWorker, "write", "swapped\n"}, {}, 2, 1});
  ::dup2(err.get(), 2);
  ::close(ends[1]);
  char block[64] = {};
  CHECK(::read(reading.get(), block, sizeof block) == 8);
  CHECK(std::string(block) == "swapped\n");
  REQUIRE(process.has_value());
  ::waitpid(process->pid, nullptr, 0);
}

TEST_CASE("Spawn: an impossible program is told with stage and reason", "[spawn]") {
  namespace fs = std::filesystem;
  const fs::path folder = fs::temp_directory_path() / ("spawn_test_" + random_hex(8));
  fs::create_directories(folder);
  const std::string plain = folder / "plain", garbage = folder / "garbage", lost = folder / "lost";
  std::ofstream(plain) << "text";
  std::ofstream(garbage) << "neither ELF nor #!";
  std::ofstream(lost) << "#! /no/such/interpreter -x\n";
  const std::string windows = folder / "windows", foreign = folder / "foreign";
  std::ofstream(windows) << "#!/bin/sh\r\necho\r\n";
  fs::copy_file(kWorker, foreign);
  {
    std::fstream file(foreign, std::ios::in | std::ios::out | std::ios::binary);
    std::string bytes(1 << 12, '\0');
    file.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
    const std::size_t loader = bytes.find("/ld-linux");
    REQUIRE(loader != std::string::npos);
    file.seekp(static_cast<std::streamoff>(loader + 1));
    file << "xx";
  }
  const std::string nameless = folder / "nameless", endless = folder / "endless";
  std::ofstream(nameless) << "#!\necho\n";
  std::ofstream(endless) << "#!" << std::string(300, '/') << "bin/sh\necho\n";
  fs::permissions(nameless, fs::perms::owner_all);
  fs::permissions(endless, fs::perms::owner_all);
  fs::permissions(windows, fs::perms::owner_all);
  fs::permissions(garbage, fs::perms::owner_all);
  fs::permissions(lost, fs::perms::owner_all);
  const std::string start = "starting local rank 3: execve ";
  CHECK(error_of("/no/such/program") == start + "/no/such/program: No such file or directory");
  CHECK(error_of(plain) == start + plain + ": Permission denied");
  CHECK(error_of(folder) == start + folder.string() + ": Permission denied");
  CHECK(error_of(garbage) ==
        start + garbage + " (neither a binary nor a script with a #! line): Exec format error");
  CHECK(error_of(nameless) ==
        start + nameless + " (its #! line names no interpreter): Exec format error");
  CHECK(error_of(endless) ==
        start + endless +
            " (its #! line is longer than the 255 characters that the kernel reads: shorten the "
            "interpreter's path, by a link to it or by `#!/usr/bin/env python3`; a Python script "
            "can be named .py): Exec format error");
  CHECK(error_of(lost) == start + lost +
                              " (the interpreter /no/such/interpreter that its first line names is "
                              "not there): No such file or directory");
  CHECK(error_of(windows) ==
        start + windows +
            " (its lines end with CR LF, as on Windows, so the kernel looks for an interpreter "
            "'/bin/sh\\r': save it with LF): No such file or directory");
  CHECK(error_of(foreign) == start + foreign +
                                 " (the dynamic loader that it names is not there: it was built "
                                 "for another system): No such file or directory");
  CHECK(to_string(spawn_process({3, {kWorker}, {}, 9999, -1}).error()) ==
        "starting local rank 3: standard streams: Bad file descriptor");
  CHECK(test::zombies() == 0);
  fs::remove_all(folder);
}

TEST_CASE("Spawn: a thousand workers leave no descriptor and no zombie", "[spawn]") {
  const int before = test::open_descriptors();
  for (int i = 0; i < 1000; ++i) {
    const auto good = spawn_process({0, {"/bin/true"}, {}});
    REQUIRE(good.has_value());
    REQUIRE(::waitpid(good->pid, nullptr, 0) == good->pid);
    if (i % 10 == 0) REQUIRE(spawn_process({0, {"/no/such"}, {}}).has_error());
  }
  CHECK(test::open_descriptors() == before);
  CHECK(test::zombies() == 0);
}

TEST_CASE("Spawn: our own signal mask is as it was", "[spawn]") {
  sigset_t before, after;
  ::sigprocmask(SIG_SETMASK, nullptr, &before);
  output_of({"/bin/true"});
  spawn_process({0, {"/no/such"}, {}}).has_error();
  ::sigprocmask(SIG_SETMASK, nullptr, &after);
  for (int signal = 1; signal < NSIG; ++signal) {
    CHECK(::sigismember(&before, signal) == ::sigismember(&after, signal));
  }
}

}  // namespace
}  // namespace ddprun::agent
