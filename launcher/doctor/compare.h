#pragma once
// Checks of several nodes together: what should be equal, who reaches whom, who is slower than its
// peers. compare.cc puts their rows together with those of each node. Pure.

#include <vector>

#include "launcher/doctor/health_report.h"

namespace ddprun::doctor {

using Nodes = std::vector<NodeFacts>;
using Rows = std::vector<Row>;

void compare_versions(const Nodes& nodes, Rows& rows);
void compare_files(const Nodes& nodes, const Need& need, Rows& rows);
void compare_bits(const Nodes& nodes, Rows& rows);
void compare_mtu(const Nodes& nodes, Rows& rows);

void compare_clocks(const Nodes& nodes, Rows& rows);
void compare_endpoint(const Nodes& nodes, Rows& rows);
void compare_reach(const Nodes& nodes, Rows& rows);
void compare_rates(const Nodes& nodes, Rows& rows);
void compare_loss(const Nodes& nodes, Rows& rows);

void compare_speed(const Nodes& nodes, Rows& rows);

// A row whose finding is that of its worst cell; `where` names the nodes that have it, unless all
// have. The finding's note and cure are the caller's.
Row row_of(std::string name, std::vector<Cell> cells);

// The value that at least half of the nodes have, else the first one's; empty values do not count.
std::string usual(const std::vector<std::string>& values);

}  // namespace ddprun::doctor
