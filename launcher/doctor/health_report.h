#pragma once
// The report of the doctor: findings with their cures, as rows in the order of the screen, for one
// node or several, as JSON and as text. Pure.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/doctor/node_facts.h"

namespace ddprun::doctor {

// Amounts as the screens show them.
inline constexpr std::int64_t kMega = 1'000'000;

std::string bytes_text(std::int64_t bytes);  // "310 MB"; powers of ten
std::string limit_text(std::int64_t bytes);  // "64 KiB", "unlimited" below 0
std::string number_text(double number);      // Three digits at most: "24.1", "0.2", "850"
std::string ms_text(double milliseconds);    // "0.2 ms", "4.1 s"

// From good to bad; the worst of all findings determines the exit code.
enum class Status {
  kOk,
  kSkipped,  // There is nothing to judge here, or nothing that matters.
  kWarn,     // A run works, but more slowly or less safely than it could.
  kUnknown,  // Something that matters could not be measured.
  kFail,     // A run fails here, or may give wrong results.
};

std::string_view to_string(Status status);  // As in the JSON: "ok", "skipped", "warn", ...
int exit_code_of(Status status);            // 0, 0, 1, 3, 2.

enum class Group { kMachine, kGpu, kNetwork };

struct Finding {
  std::string name = {};  // Empty: the name of its check.
  Status status = Status::kOk;
  std::string value = {};  // What was found: "64 KiB".
  std::string note = {};   // Why that matters: "NCCL over InfiniBand needs more".
  std::string cure = {};   // Something to type: "ulimit -l unlimited".
  bool operator==(const Finding&) const = default;
};

// What a run needs on each node.
struct Need {
  int workers = 1;                 // Per node.
  bool several = false;            // There are other nodes.
  std::string program = {};        // The program that will be started; empty: none was given.
  std::int64_t memory_folder = 0;  // Its bytes per node; 0: the run has none.
};

struct Cell {
  std::string value;
  Status status = Status::kOk;
};

struct Row {
  Group group = Group::kMachine;
  Finding finding;               // Of the worst node.
  std::string where = {};        // "on node2": the nodes that need the cure; empty: all, or one.
  std::vector<Cell> cells = {};  // By node; empty in a report about one node.
  bool compared = false;         // Is about the nodes together: shown even if it is good.
};

struct HealthReport {
  std::vector<std::string> hosts;  // In the order of the user.
  std::vector<Row> rows;
  double took_ms = 0;
};

// What is known of a node. Without facts, `error` is a sentence about the reason.
struct NodeFacts {
  std::string host;
  Facts facts = {};
  std::string error = {};
};

HealthReport report_of_node(const NodeFacts& node, const Need& need);
HealthReport report_of_nodes(const std::vector<NodeFacts>& nodes, const Need& need);

// The worst status of all rows; kUnknown if there are none.
Status worst_of(const HealthReport& report);

// One object; docs/doctor.md describes its fields.
std::string report_json(const HealthReport& report);

// The report as text, with or without colours, fitted to a width.
struct Style {
  bool colours = false;
  bool utf8 = true;
  int width = 0;         // Columns; 0: any.
  bool verbose = false;  // Good rows of several nodes, too.
};

std::string screen(const HealthReport& report, const Style& style);

// Under --preflight: the sentences that a user should see before a run, worst first; empty if all
// is well.
std::vector<std::string> warnings_of(const HealthReport& report, Status least);

}  // namespace ddprun::doctor
