#pragma once
// All checks of one node, in the order of the screen. Each is a pure judgement; the files
// checks_*.cc have them by subject. Called by the screens, by compare.h and by --preflight. Pure.

#include <span>

#include "launcher/doctor/finding.h"

namespace ddprun::doctor {

std::span<const Check> all_checks();

// What `check` says; never nothing. Where its probe has failed, the finding is kUnknown, and says
// why.
std::vector<Finding> judge(const Check& check, const Facts& facts, const Need& need);

// By file.
using Findings = std::vector<Finding>;
Findings judge_open_files(const Facts& facts, const Need& need);
Findings judge_processes(const Facts& facts, const Need& need);
Findings judge_locked_memory(const Facts& facts, const Need& need);
Findings judge_core(const Facts& facts, const Need& need);
Findings judge_shared_memory(const Facts& facts, const Need& need);
Findings judge_temporary_folder(const Facts& facts, const Need& need);
Findings judge_memory(const Facts& facts, const Need& need);
Findings judge_processors(const Facts& facts, const Need& need);
Findings judge_governor(const Facts& facts, const Need& need);
Findings judge_cgroup(const Facts& facts, const Need& need);
Findings judge_clock(const Facts& facts, const Need& need);
Findings judge_leftovers(const Facts& facts, const Need& need);
Findings judge_program(const Facts& facts, const Need& need);
Findings judge_speed(const Facts& facts, const Need& need);
Findings judge_gpus(const Facts& facts, const Need& need);
Findings judge_name(const Facts& facts, const Need& need);
Findings judge_interfaces(const Facts& facts, const Need& need);
Findings judge_port(const Facts& facts, const Need& need);
Findings judge_loopback(const Facts& facts, const Need& need);

}  // namespace ddprun::doctor
