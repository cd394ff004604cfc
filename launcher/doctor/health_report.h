#pragma once
// All that doctor says, for one node or several: rows in the order of the screen. Pure.

#include <string>
#include <vector>

#include "launcher/doctor/finding.h"

namespace ddprun::doctor {

struct Cell {
  std::string value;
  Status status = Status::kOk;
};

struct Row {
  Group group = Group::kMachine;
  Finding finding;               // Of the worst node.
  std::string where = {};        // "on node2": who needs the cure; empty: all, or the only one.
  std::vector<Cell> cells = {};  // By node; none where there is only one.
  bool compared = false;  // Says something about the nodes together: shown when all is well, too.
};

struct HealthReport {
  std::vector<std::string> hosts;  // In the order of the user.
  std::vector<Row> rows;
  double took_ms = 0;
};

// What is known of a node; without facts `error` says why as a sentence.
struct NodeFacts {
  std::string host;
  Facts facts = {};
  std::string error = {};
};

HealthReport report_of_node(const NodeFacts& node, const Need& need);
HealthReport report_of_nodes(const std::vector<NodeFacts>& nodes, const Need& need);  // compare.cc

// The worst of all rows; kUnknown if there are none.
Status worst_of(const HealthReport& report);

// One object; docs/doctor.md has its fields.
std::string report_json(const HealthReport& report);

}  // namespace ddprun::doctor
