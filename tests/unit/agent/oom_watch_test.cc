#include "agent/health/death_evidence.h"

#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

// A machine of files.
struct Machine {
  fs::path root;

  Machine() {
    char folder[] = "/tmp/ddprun-oom-XXXXXX";
    root = ::mkdtemp(folder);
    write("/proc/vmstat", "nr_free_pages 1\noom_kill 4\nnuma_hit 9\n");
  }
  ~Machine() { fs::remove_all(root); }

  void write(const std::string& path, const std::string& text) const {
    fs::create_directories((root / path.substr(1)).parent_path());
    std::ofstream(root / path.substr(1)) << text;
  }
};

TEST_CASE("OOM watch: the counters of both cgroup versions and of the machine", "[oom]") {
  CHECK(oom_kills_in("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n") == 3);
  CHECK(oom_kills_in("low 0\noom 2\noom_kill 1\noom_group_kill 5\n") == 1);
  CHECK(oom_kills_in("oom_kill 12") == 12);
  for (const char* text : {"", "oom_kill", "oom_kill ", "oom_kill x", "xoom_kill 3"}) {
    CHECK(oom_kills_in(text) == 0);
  }
}

TEST_CASE("OOM watch: the memory cgroup of a process", "[oom]") {
  const MemoryCgroup hybrid = memory_cgroup_in("9:cpu,memory:/a/b\n0::/c\n");
  CHECK_FALSE(hybrid.v2);
  CHECK(hybrid.path == "/a/b");
  const MemoryCgroup unified = memory_cgroup_in("0::/user.slice/x:y\n");
  CHECK(unified.v2);
  CHECK(unified.path == "/user.slice/x:y");
  CHECK(memory_cgroup_in("nonsense\n:\n").path.empty());
}

TEST_CASE("OOM watch: a raised counter is evidence, an old one is not", "[oom]") {
  const Machine machine;
  machine.write("/proc/self/cgroup", "0::/job\n");
  machine.write("/sys/fs/cgroup/job/memory.events", "oom 1\noom_kill 1\n");
  OomWatch watch(machine.root.string());
  watch.begin();
  CHECK(watch.evidence(12).empty());
  machine.write("/sys/fs/cgroup/job/memory.events", "oom 1\noom_kill 2\n");
  CHECK(watch.evidence(12) ==
        "the kernel's out-of-memory killer struck 1 time in this job's memory cgroup since the "
        "workers were started");
  watch.begin();
  CHECK(watch.evidence(12).empty());
}

TEST_CASE("OOM watch: version 1, and a container whose path is not there", "[oom]") {
  const Machine machine;
  machine.write("/proc/self/cgroup", "4:memory:/docker/123\n");
  machine.write("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill 0\n");
  OomWatch watch(machine.root.string());
  watch.begin();
  machine.write("/sys/fs/cgroup/memory/memory.oom_control", "oom_kill 2\n");
  CHECK(watch.evidence(12).find("2 times in this job's memory cgroup") != std::string::npos);
}

TEST_CASE("OOM watch: the machine's counter, and the kernel's log where it names the process",
          "[oom]") {
  const Machine machine;
  OomWatch watch(machine.root.string());
  watch.begin();
  machine.write("/dev/kmsg", "3,1,1,-;Out of memory: Killed process 12 (train) total-vm:9kB, a\n");
  CHECK(watch.evidence(12).empty());  // That was before.
  machine.write("/proc/vmstat", "oom_kill 5\n");
  CHECK(watch.evidence(1).find("1 time on this machine") != std::string::npos);
  CHECK(watch.evidence(12) ==
        "the kernel's out-of-memory killer ended it (kernel log: Out of memory: Killed process 12 "
        "(train) total-vm:9kB)");
}

TEST_CASE("OOM watch: whom a whole kernel log does not name the OOM killer has not ended",
          "[oom]") {
  const std::string another = "Out of memory: Killed process 12 (train) total-vm:9kB\n";
  for (const std::string first : {"4026531836", "4026532000"}) {
    for (const std::string time : {"1", "99999999999999999"}) {
      INFO(first << " " << time);
      const Machine machine;
      fs::create_directories(machine.root / "proc/self/ns");
      fs::create_symlink("pid:[" + first + "]", machine.root / "proc/self/ns/pid");
      OomWatch watch(machine.root.string());
      watch.begin();
      machine.write("/dev/kmsg", "3,1," + time + ",-;" + another);
      machine.write("/proc/vmstat", "oom_kill 5\n");
      CHECK(watch.evidence(12).find("ended it") != std::string::npos);
      // A log of other numbers, or one that begins too late, may lack the process.
      const bool is_evidence = first != "4026531836" || time != "1";
      CHECK(watch.evidence(13).empty() == !is_evidence);
    }
  }
}

TEST_CASE("OOM watch: a machine without any of these says nothing", "[oom]") {
  OomWatch watch("/nonexistent");
  watch.begin();
  CHECK(watch.evidence(1).empty());
}

}  // namespace
}  // namespace ddprun::agent
