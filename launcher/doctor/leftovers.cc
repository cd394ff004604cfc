// Leftovers of earlier runs of this user: workers without an agent above them, cgroups and shared
// memory of processes that are gone.

#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "agent/process/cgroup.h"
#include "agent/process/proc_file.h"
#include "common/system/folder.h"
#include "common/text/figures.h"
#include "launcher/doctor/subject.h"

namespace ddprun::doctor {

namespace fact {

constexpr std::string_view kLeftovers = "leftovers";  // Items have these facts:
constexpr Text kLeft{"what"};
constexpr Text kLeftCure{"cure"};

}  // namespace fact

namespace {

using namespace std::chrono_literals;

constexpr int kAncestorsMax = 256;                 // Of a process.
constexpr int kCheckAgainMs = 300;                 // An agent kills its workers long before.
constexpr std::size_t kListedMax = 8;              // More would not be read.
constexpr std::string_view kMark = "DDPRUN_JOB=";  // Set for all processes of a run.

bool is_alive(int pid) { return ::kill(pid, 0) == 0 || errno == EPERM; }

bool is_marked(int pid) {
  const std::string variables = agent::read_proc_file("/proc/" + std::to_string(pid) + "/environ");
  return variables.starts_with(kMark) ||
         variables.find('\0' + std::string(kMark)) != std::string::npos;
}

// A ddprun among the ancestors will clean up.
bool is_supervised(int pid) {
  for (int depth = 0; pid > 1 && depth < kAncestorsMax; ++depth) {
    const agent::ProcStat stat = agent::read_proc_stat(pid);
    if (stat.name.starts_with("ddprun") || stat.name == "keeper") return true;
    pid = stat.parent;
  }
  return false;
}

void add_leftover(Facts& facts, std::string what, std::string cure) {
  if (facts.list(fact::kLeftovers).size() >= kListedMax) return;
  Facts left;
  left.set(fact::kLeft, std::move(what));
  left.set(fact::kLeftCure, std::move(cure));
  facts.add(fact::kLeftovers, std::move(left));
}

std::vector<int> orphans() {
  std::vector<int> found;
  for (const int pid : agent::numbered_entries("/proc")) {
    if (pid != ::getpid() && is_marked(pid) && !is_supervised(pid)) found.push_back(pid);
  }
  return found;
}

// Checks twice: if an agent was killed a moment ago, its processes are being killed, too.
void find_processes(Facts& facts) {
  std::vector<int> left = orphans();
  if (left.empty()) return;
  ::poll(nullptr, 0, kCheckAgainMs);
  const std::vector<int> again = orphans();
  for (const int pid : left) {
    const agent::ProcStat stat = agent::read_proc_stat(pid);
    const bool stays = std::find(again.begin(), again.end(), pid) != again.end() && !stat.exiting;
    if (!stays) continue;
    const std::string number = std::to_string(pid);
    add_leftover(facts, "pid " + number + " (" + stat.name + ")", "kill " + number);
  }
}

// The pid in a name such as "ddprun-4711", which job_cgroup_name() makes.
std::optional<int> pid_in(std::string_view name, std::string_view before) {
  if (!name.starts_with(before)) return std::nullopt;
  name.remove_prefix(before.size());
  const auto pid = as_number<int>(name);
  return pid > 0 ? pid : std::nullopt;
}

void find_cgroups(Facts& facts) {
  const std::string own = agent::own_cgroup_folder();
  if (own.empty()) return;
  for (const std::string& name : names_in(own).names) {
    const auto pid = pid_in(name, "ddprun-");
    if (pid && !is_alive(*pid)) {
      // Only folders can be removed there, and the innermost must go first.
      add_leftover(facts, "cgroup " + name,
                   "find " + own + "/" + name + " -depth -type d -exec rmdir {} +");
    }
  }
}

// PyTorch names its segments after the process that made them: "torch_4711_...".
void find_shared_memory(Facts& facts) {
  for (const std::string& name : names_in("/dev/shm").names) {
    const std::string path = "/dev/shm/" + name;
    struct stat status {};
    if (::stat(path.c_str(), &status) != 0 || status.st_uid != ::geteuid()) continue;
    if (!name.starts_with("torch_")) continue;
    const auto pid = pid_in(name.substr(0, name.find('_', 6)), "torch_");
    if (pid && !is_alive(*pid)) {
      add_leftover(facts, "shared memory " + name, "rm " + path);
    }
  }
}

void gather_leftovers(const ProbeRequest&, Facts& facts) {
  find_processes(facts);
  find_cgroups(facts);
  find_shared_memory(facts);
}

Findings judge_leftovers(const Facts& facts, const Need&) {
  Findings findings;
  for (const Facts& left : facts.list(fact::kLeftovers)) {
    findings.push_back({.status = Status::kWarn,
                        .value = left.get_or(fact::kLeft, std::string("something")),
                        .note = "of a run that is over",
                        .cure = left.text(fact::kLeftCure)});
  }
  if (findings.empty()) findings.push_back({.value = "none"});
  return findings;
}

}  // namespace

Subject leftovers_subject() {
  return {.probe = Probe{"leftovers", 15s, /*fast=*/false, /*alone=*/false, gather_leftovers},
          .checks = {{"leftovers", judge_leftovers}}};
}

}  // namespace ddprun::doctor
