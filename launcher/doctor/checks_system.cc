// The clock, what earlier runs have left behind, and the program.

#include "launcher/doctor/amounts.h"
#include "launcher/doctor/checks.h"
#include "launcher/doctor/fact_names.h"

namespace ddprun::doctor {

Findings judge_clock(const Facts& facts, const Need& need) {
  if (const auto error = facts.get(fact::kClockErrorMs)) {
    return {{.value = "synchronised", .note = "within " + ms_text(*error)}};
  }
  return {{.status = Status::kSkipped,
           .value = "not synchronised",
           .note = need.several ? "" : "matters between nodes: ddprun doctor --hosts measures it"}};
}

Findings judge_leftovers(const Facts& facts, const Need&) {
  Findings findings;
  for (const Facts& left : facts.list(fact::kLeftovers)) {
    findings.push_back({.status = Status::kWarn,
                        .value = left.get_or(fact::kLeft, std::string("something")),
                        .note = "of a run that is over",
                        .cure = left.get_or(fact::kLeftCure, std::string())});
  }
  if (findings.empty()) findings.push_back({.value = "none"});
  return findings;
}

Findings judge_program(const Facts& facts, const Need& need) {
  if (need.program.empty()) {
    return {{.status = Status::kSkipped,
             .value = "none given",
             .note = "ddprun doctor PROGRAM compares it and its libraries between nodes"}};
  }
  const std::string error = facts.get_or(fact::kProgramError, std::string());
  if (!error.empty()) {
    return {{.status = Status::kFail, .value = need.program, .note = error}};
  }
  for (const Facts& file : facts.list(fact::kFiles)) {
    if (file.get_or(fact::kFileName, std::string()) == "program") {
      return {
          {.value = need.program + " " + file.get_or(fact::kFileHash, std::string()).substr(0, 6)}};
    }
  }
  return {{.status = Status::kUnknown, .value = "not measured"}};
}

}  // namespace ddprun::doctor
