// A node's name and versions, and how well its clock is kept.

#include "launcher/doctor/versions.h"

#include <gnu/libc-version.h>
#include <sys/timex.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "common/release.h"
#include "common/system/held_process.h"
#include "launcher/doctor/subject.h"

namespace ddprun::doctor {

namespace fact {

constexpr Text kVersion{"version"};  // Of ddprun.
constexpr Text kKernel{"kernel"};    // "6.1.0 x86_64".
constexpr Text kLibc{"libc"};
constexpr Whole kUser{"user"};
constexpr Whole kPidfds{"pidfds"};               // 1: this process may have some.
constexpr Real kClockErrorMs{"clock_error_ms"};  // The kernel's estimate; absent: not synchronised.

}  // namespace fact

std::int64_t wall_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

namespace {

using namespace std::chrono_literals;

void gather_versions(const ProbeRequest&, Facts& facts) {
  utsname system{};
  if (::uname(&system) == 0) {
    facts.set(fact::kHost, std::string(system.nodename));
    facts.set(fact::kKernel, std::string(system.release) + " " + system.machine);
  }
  facts.set(fact::kPidfds, std::int64_t{has_pidfds() ? 1 : 0});
  facts.set(fact::kVersion, std::string(release()));
  facts.set(fact::kLibc, std::string(::gnu_get_libc_version()));
  facts.set(fact::kUser, std::int64_t{::geteuid()});
  timex time{};
  const int state = ::adjtimex(&time);
  if (state >= 0 && state != TIME_ERROR && (time.status & STA_UNSYNC) == 0) {
    facts.set(fact::kClockErrorMs, static_cast<double>(time.esterror) / 1000.0);
  }
}

Findings judge_kernel(const Facts& facts, const Need&) {
  const std::string kernel = facts.get_or(fact::kKernel, std::string("unknown"));
  if (facts.get_or(fact::kPidfds, std::int64_t{1}) != 0) return {{.value = kernel}};
  return {{.status = Status::kSkipped,
           .value = kernel + ", without pidfds",
           .note = "which of two workers that end in the same moment was first is not known"}};
}

Findings judge_clock(const Facts& facts, const Need& need) {
  if (const auto error = facts.get(fact::kClockErrorMs)) {
    return {{.value = "synchronised", .note = "within " + ms_text(*error)}};
  }
  return {{.status = Status::kSkipped,
           .value = "not synchronised",
           .note = need.several ? "" : "matters between nodes: ddprun doctor --hosts measures it"}};
}

constexpr double kClockMs = 1'000;  // More confuses times of files, certificates and logs.

std::string signed_ms(double ms) { return (ms < 0 ? "-" : "+") + ms_text(std::abs(ms)); }

// The middle node's offset, so that the odd node is named; the first one's if there are two nodes.
double reference_clock(std::vector<double> offsets) {
  if (offsets.size() < 3) return offsets.front();
  std::sort(offsets.begin(), offsets.end());
  return offsets[offsets.size() / 2];
}

Rows compare_clocks(const Nodes& nodes, const Need&) {
  std::vector<double> offsets;
  for (const NodeFacts& node : nodes) {
    if (const auto offset = node.facts.get(fact::kClockOffsetMs)) offsets.push_back(*offset);
  }
  if (offsets.size() < 2) return {};
  const double reference = reference_clock(offsets);
  std::vector<Cell> cells;
  for (const NodeFacts& node : nodes) {
    const auto offset = node.facts.get(fact::kClockOffsetMs);
    if (!offset) {
      cells.push_back({});
      continue;
    }
    const double off = *offset - reference;
    const double margin = 2 * node.facts.get_or(fact::kClockMarginMs, 0.0);
    const bool wrong = std::abs(off) - margin > kClockMs;
    // An offset that the measurement itself may have caused does not count.
    const bool equal = std::abs(off) <= std::max(margin, 1.0);
    cells.push_back({equal ? "same" : signed_ms(off), wrong ? Status::kWarn : Status::kOk});
  }
  Row row = row_of("clock", std::move(cells));
  if (row.finding.status == Status::kWarn) {
    row.finding.note = "start its time service";
    row.finding.cure = "systemctl restart chronyd";
  }
  return {row};
}

Rows compare_versions(const Nodes& nodes, const Need&) {
  return compare_equal(nodes, {.name = "ddprun",
                               .fact = fact::kVersion,
                               .if_other = Status::kFail,
                               .cure = "install one version of ddprun on all nodes"});
}

// Kernels and C libraries may differ: if that matters, "same bits" shows it.
Rows compare_system(const Nodes& nodes, const Need&) {
  Rows rows = compare_equal(nodes, {"kernel", fact::kKernel, Status::kSkipped, ""});
  for (Row& row : compare_equal(nodes, {"C library", fact::kLibc, Status::kSkipped, ""})) {
    rows.push_back(std::move(row));
  }
  return rows;
}

}  // namespace

Subject versions_subject() {
  return {.probe = Probe{"node", 5s, /*fast=*/true, /*alone=*/false, gather_versions},
          .checks = {{"kernel", judge_kernel, /*if_several=*/false},
                     {"clock", judge_clock, /*if_several=*/false}},
          .comparisons = {{Section::kVersion, compare_versions},
                          {Section::kSystem, compare_system},
                          {Section::kClock, compare_clocks}}};
}

}  // namespace ddprun::doctor
