#pragma once
// A subject of the doctor is one thing that a run needs on a node. Everything about it is in one
// file: the names of its facts, how they are gathered, what is checked on one node, what is
// compared between several, and the sentences. A check is a function and a row in the file of its
// subject; a new subject is a file and a name in the list below. Facts that other files read, too,
// are in the subject's header (network.h, versions.h). Called by health_report.cc and probes.cc.
// Pure.
//
//   Probe       runs on each node, in a process of its own with a deadline
//   Check       judges the facts of one node
//   Comparison  judges the facts of all nodes together

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/time.h"
#include "launcher/doctor/health_report.h"
#include "launcher/doctor/node_facts.h"

namespace ddprun::doctor {

using Findings = std::vector<Finding>;
using Nodes = std::vector<NodeFacts>;
using Rows = std::vector<Row>;

struct ProbeRequest {
  std::string program = {};  // Its file and its libraries are examined; empty: no program.
  std::uint16_t port = 0;    // Checked to be free; 0: no port.
  // Where the memory folder is to be made; empty: /dev/shm.
  std::string memory_at = {};
};

struct Probe {
  std::string_view name;  // Facts::why() of this name is the reason if the probe measured nothing.
  Milliseconds limit;
  bool fast;   // Part of --preflight fast.
  bool alone;  // Measures speed: runs after all other probes have ended.
  void (*gather)(const ProbeRequest& request, Facts& facts);
};

// One line of the screen. Some checks return one finding per problem.
struct Check {
  std::string_view name;
  Findings (*judge)(const Facts& facts, const Need& need);
  bool if_several = true;  // False: a comparison covers it in a report about several nodes.
};

// The place of a comparison's rows among rows that are equally good, from top to bottom.
enum class Section {
  kVersion,
  kDriver,
  kSystem,
  kGpuKinds,
  kFiles,
  kBits,
  kMtu,
  kClock,
  kLinks,
  kSpeed
};

struct Comparison {
  Section section;
  Rows (*compare)(const Nodes& nodes, const Need& need);  // No row: nothing is known.
};

struct Subject {
  Group group = Group::kMachine;
  std::optional<Probe> probe = {};  // Absent: host_check.cc measures between the nodes.
  std::vector<Check> checks = {};
  std::vector<Comparison> comparisons = {};
};

// Each in the file of its name, but speed_subject() is in cpu.cc and names_subject() and
// links_subject() are in network.cc.
Subject limits_subject();
Subject storage_subject();
Subject cpu_subject();
Subject versions_subject();
Subject leftovers_subject();
Subject program_subject();
Subject speed_subject();
Subject gpu_subject();
Subject names_subject();
Subject network_subject();
Subject links_subject();

const std::vector<Subject>& all_subjects();  // In the order of the screen.

// The findings of `check`, at least one. If the subject's probe has failed, the finding is kUnknown
// and its note is the reason.
Findings judge(const Subject& subject, const Check& check, const Facts& facts, const Need& need);

// Helpers of checks and comparisons.

Findings not_measured();  // kUnknown.

// A row with the status and value of its worst cell. The caller adds note and cure.
Row row_of(std::string name, std::vector<Cell> cells);

// The value that at least half of the nodes have, else the first node's. Ignores empty values.
std::string usual(const std::vector<std::string>& values);

// A cell per value; those that differ from the usual value get `if_other`.
std::vector<Cell> cells_of(const std::vector<std::string>& values, Status if_other);

bool any_known(const std::vector<std::string>& values);  // Any value is not empty.

// A fact that should be equal on all nodes.
struct Equal {
  std::string name;
  Text fact;
  Status if_other;
  std::string cure;
};
Rows compare_equal(const Nodes& nodes, const Equal& equal);

// The GPUs of a node are a list of facts, which the launcher counts.
namespace fact {
inline constexpr std::string_view kGpus = "gpus";
}

}  // namespace ddprun::doctor
