#include "launcher/doctor/checks.h"

#include "common/assert.h"

namespace ddprun::doctor {
namespace {

constexpr Check kChecks[] = {
    {"open files", Group::kMachine, "limits", judge_open_files},
    {"processes", Group::kMachine, "limits", judge_processes},
    {"locked memory", Group::kMachine, "limits", judge_locked_memory},
    {"core files", Group::kMachine, "limits", judge_core},
    {"/dev/shm", Group::kMachine, "storage", judge_shared_memory},
    {"TMPDIR", Group::kMachine, "storage", judge_temporary_folder},
    {"memory", Group::kMachine, "cpu", judge_memory},
    {"processors", Group::kMachine, "cpu", judge_processors},
    {"governor", Group::kMachine, "cpu", judge_governor},
    {"cgroup", Group::kMachine, "cpu", judge_cgroup},
    {"clock", Group::kMachine, "node", judge_clock},
    {"leftovers", Group::kMachine, "leftovers", judge_leftovers},
    {"program", Group::kMachine, "program", judge_program},
    {"speed", Group::kMachine, "speed", judge_speed},
    {"GPUs", Group::kGpu, "gpu", judge_gpus},
    {"own name", Group::kNetwork, "names", judge_name},
    {"interfaces", Group::kNetwork, "network", judge_interfaces},
    {"port", Group::kNetwork, "network", judge_port},
    {"loopback", Group::kNetwork, "network", judge_loopback},
};

}  // namespace

std::span<const Check> all_checks() { return kChecks; }

std::vector<Finding> judge(const Check& check, const Facts& facts, const Need& need) {
  std::vector<Finding> findings;
  if (const std::string why = facts.why(check.probe); !why.empty()) {
    findings = {{.status = Status::kUnknown, .value = "not measured", .note = why}};
  } else {
    findings = check.judge(facts, need);
  }
  DDPRUN_ASSERT(!findings.empty());
  for (Finding& finding : findings) {
    if (finding.name.empty()) finding.name = check.name;
  }
  return findings;
}

}  // namespace ddprun::doctor
