// What should be equal on all nodes.

#include <algorithm>
#include <map>
#include <set>

#include "launcher/doctor/amounts.h"
#include "launcher/doctor/compare.h"
#include "launcher/doctor/fact_names.h"

namespace ddprun::doctor {
namespace {

struct Equal {
  std::string_view name;
  Text fact;
  Status if_other;
  std::string_view cure;
};

// Kernels and C libraries may differ: what matters of them shows in "same bits".
constexpr Equal kEqual[] = {
    {"ddprun", fact::kVersion, Status::kFail, "install one version of ddprun on all nodes"},
    {"GPU driver", fact::kDriver, Status::kWarn, "install one driver on all nodes"},
    {"kernel", fact::kKernel, Status::kSkipped, ""},
    {"C library", fact::kLibc, Status::kSkipped, ""},
};

std::vector<Cell> cells_of(const std::vector<std::string>& values, Status if_other) {
  const std::string most = usual(values);
  std::vector<Cell> cells;
  for (const std::string& value : values) {
    const bool other = !value.empty() && value != most;
    cells.push_back({value, other ? if_other : Status::kOk});
  }
  return cells;
}

bool is_known(const std::vector<std::string>& values) {
  return std::any_of(values.begin(), values.end(),
                     [](const auto& value) { return !value.empty(); });
}

// Version and the first signs of the hash; "-" where the node has no such file.
std::vector<std::string> values_of_file(const Nodes& nodes, const std::string& name) {
  std::vector<std::string> values;
  for (const NodeFacts& node : nodes) {
    std::string value = node.error.empty() ? "missing" : "";
    for (const Facts& file : node.facts.list(fact::kFiles)) {
      if (file.text(fact::kFileName) != name) continue;
      const std::string version = file.text(fact::kFileVersion);
      const std::string hash = file.text(fact::kFileHash).substr(0, 6);
      value = version.empty() || hash.empty() ? version + hash : version + " " + hash;
    }
    values.push_back(std::move(value));
  }
  return values;
}

std::string kinds_of_gpus(const Facts& facts) {
  std::map<std::string, int> counts;
  for (const Facts& gpu : facts.list(fact::kGpus)) ++counts[gpu.text(fact::kGpuName)];
  std::string kinds;
  for (const auto& [name, count] : counts) {
    kinds += (kinds.empty() ? "" : ", ") + std::to_string(count) + " × " + name;
  }
  return kinds.empty() ? "none" : kinds;
}

void compare_gpu_kinds(const Nodes& nodes, Rows& rows) {
  std::vector<std::string> kinds;
  bool any = false;
  for (const NodeFacts& node : nodes) {
    kinds.push_back(node.error.empty() ? kinds_of_gpus(node.facts) : "");
    any = any || !node.facts.list(fact::kGpus).empty();
  }
  if (!any) return;
  Row row = row_of("GPUs of a kind", cells_of(kinds, Status::kWarn));
  row.group = Group::kGpu;
  if (row.finding.status != Status::kOk) row.finding.note = "all ranks wait for the slowest kind";
  rows.push_back(std::move(row));
}

std::string program_error(const Nodes& nodes) {
  for (const NodeFacts& node : nodes) {
    if (const std::string error = node.facts.text(fact::kProgramError); !error.empty())
      return error;
  }
  return "";
}

}  // namespace

void compare_versions(const Nodes& nodes, Rows& rows) {
  for (const Equal& equal : kEqual) {
    std::vector<std::string> values;
    for (const NodeFacts& node : nodes) values.push_back(node.facts.text(equal.fact));
    if (!is_known(values)) continue;
    Row row = row_of(std::string(equal.name), cells_of(values, equal.if_other));
    if (row.finding.status > Status::kSkipped) {
      row.finding.note = "usually " + usual(values);
      row.finding.cure = equal.cure;
    }
    rows.push_back(std::move(row));
  }
  compare_gpu_kinds(nodes, rows);
}

void compare_files(const Nodes& nodes, const Need& need, Rows& rows) {
  std::set<std::string> names;
  for (const NodeFacts& node : nodes) {
    for (const Facts& file : node.facts.list(fact::kFiles))
      names.insert(file.text(fact::kFileName));
  }
  if (!need.program.empty()) names.insert("program");
  for (const std::string& name : names) {
    const std::vector<std::string> values = values_of_file(nodes, name);
    Row row = row_of(name, cells_of(values, Status::kFail));
    if (name == "program" && !program_error(nodes).empty()) {
      for (Cell& cell : row.cells) {
        if (cell.value == "missing") cell.status = Status::kFail;
      }
      row = row_of(name, std::move(row.cells));
      row.finding.note = program_error(nodes);
    } else if (row.finding.status == Status::kFail) {
      row.finding.note = "ranks that run different code may hang or compute different results";
      row.finding.cure = name == "program" ? "rsync " + need.program + " to all nodes"
                                           : "install one version of " + name + " on all nodes";
    }
    rows.push_back(std::move(row));
  }
}

void compare_bits(const Nodes& nodes, Rows& rows) {
  std::vector<std::string> hashes;
  for (const NodeFacts& node : nodes) hashes.push_back(node.facts.text(fact::kBits).substr(0, 6));
  if (!is_known(hashes)) return;
  Row row = row_of("same bits", cells_of(hashes, Status::kWarn));
  if (row.finding.status == Status::kWarn) {
    row.finding.note = "equal input gives different bits there: a different processor or C library";
    row.finding.cure = "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX512F,-AVX2,-FMA on all nodes";
  }
  rows.push_back(std::move(row));
}

void compare_mtu(const Nodes& nodes, Rows& rows) {
  std::vector<std::string> values;
  for (const NodeFacts& node : nodes) {
    // Of the interface whose address the others know.
    std::string value;
    const std::string own = node.facts.text(fact::kMeetAddress);
    for (const Facts& interface : node.facts.list(fact::kInterfaces)) {
      const bool is_it = own.empty() ? value.empty() : interface.text(fact::kAddress) == own;
      const auto mtu = interface.get(fact::kMtu);
      if (is_it && mtu) value = count_text(*mtu);
    }
    values.push_back(std::move(value));
  }
  if (!is_known(values)) return;
  Row row = row_of("MTU", cells_of(values, Status::kWarn));
  row.group = Group::kNetwork;
  if (row.finding.status == Status::kWarn) {
    row.finding.note = "usually " + usual(values) + "; packets may be dropped on the way";
    std::string mtu = usual(values);
    mtu.erase(std::remove(mtu.begin(), mtu.end(), ','), mtu.end());
    row.finding.cure = "ip link set INTERFACE mtu " + mtu;
  }
  rows.push_back(std::move(row));
}

}  // namespace ddprun::doctor
