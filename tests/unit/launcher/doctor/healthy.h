#pragma once
// The facts of a node on which all is well, for tests that spoil one of them.

#include "launcher/doctor/health_report.h"

namespace ddprun::doctor::test {

inline Facts healthy_gpu() {
  Facts gpu;
  gpu.set(Text{"name"}, std::string("H100"));
  gpu.set(Whole{"pcie_width"}, std::int64_t{16});
  gpu.set(Whole{"pcie_width_max"}, std::int64_t{16});
  gpu.set(Whole{"links_up"}, std::int64_t{18});
  gpu.set(Whole{"celsius"}, std::int64_t{45});
  return gpu;
}

inline void add_machine(Facts& facts) {
  facts.set(Whole{"files_soft"}, std::int64_t{1'024});
  facts.set(Whole{"files_hard"}, std::int64_t{1'048'576});
  facts.set(Whole{"locked_bytes"}, std::int64_t{-1});
  facts.set(Whole{"core_bytes"}, std::int64_t{0});
  facts.set(Whole{"tasks_left"}, std::int64_t{62'914});
  facts.set(Whole{"shm_free_bytes"}, std::int64_t{252'000'000'000});
  facts.set(Whole{"shm_bytes"}, std::int64_t{252'000'000'000});
  facts.set(Text{"tmp"}, std::string("/tmp"));
  facts.set(Whole{"tmp_free_bytes"}, std::int64_t{310'000'000'000});
  facts.set(Whole{"tmp_free_inodes"}, std::int64_t{1'000'000});
  facts.set(Whole{"tmp_noexec"}, std::int64_t{0});
  facts.set(Whole{"processors"}, std::int64_t{64});
  facts.set(Whole{"memory_left_bytes"}, std::int64_t{512'000'000'000});
  facts.set(Text{"memory_by"}, std::string("machine"));
  facts.set(Text{"cgroup"}, std::string("/sys/fs/cgroup/mine"));
  facts.set(Real{"clock_error_ms"}, 0.4);
  facts.set(Real{"chunk_ms"}, 1.0);
  facts.set(Real{"memory_gb_s"}, 20.0);
}

inline Facts healthy(const std::string& host = "node1") {
  Facts facts;
  facts.set(Text{"host"}, host);
  facts.set(Text{"version"}, std::string("1.2.3"));
  facts.set(Text{"bits"}, std::string("0123456789abcdef"));
  facts.set(Text{"gpu_driver"}, std::string("580.65"));
  add_machine(facts);
  facts.set(Text{"own_addresses"}, std::string("10.0.0.1"));
  facts.set(Real{"name_ms"}, 0.5);
  facts.set(Whole{"port"}, std::int64_t{29'400});
  facts.set(Real{"loopback_gb_s"}, 3.0);
  Facts interface;
  interface.set(Text{"interface"}, std::string("eth0"));
  interface.set(Text{"address"}, std::string("10.0.0.1"));
  interface.set(Whole{"mtu"}, std::int64_t{1'500});
  interface.set(Whole{"packets"}, std::int64_t{1'000'000});
  facts.add("interfaces", interface);
  return facts;
}

// A link from `facts`' node to `name`.
inline Facts link_to(const std::string& name, double gb_s = 3.0) {
  Facts peer;
  peer.set(Text{"peer"}, name);
  peer.set(Real{"ms"}, 0.2);
  peer.set(Real{"gb_s"}, gb_s);
  peer.set(Whole{"segments"}, std::int64_t{10'000});
  peer.set(Whole{"segments_again"}, std::int64_t{0});
  return peer;
}

// Three of them, each with links to the other two.
inline std::vector<NodeFacts> healthy_nodes() {
  std::vector<NodeFacts> nodes;
  for (const std::string host : {"node1", "node2", "node3"}) {
    NodeFacts node{host, healthy(host)};
    for (const std::string other : {"node1", "node2", "node3"}) {
      if (other == host) continue;
      Facts reached;
      reached.set(Text{"peer"}, other);
      node.facts.add("peers", reached);
      node.facts.add("peers", link_to(other));
    }
    node.facts.set(Real{"meet_ms"}, 0.2);
    node.facts.set(Text{"meet_address"}, std::string("10.0.0.1"));
    node.facts.set(Real{"clock_offset_ms"}, 0.3);
    node.facts.set(Real{"clock_doubt_ms"}, 0.5);
    nodes.push_back(std::move(node));
  }
  nodes.front().facts.set(Whole{"endpoint_port"}, std::int64_t{29'517});
  return nodes;
}

}  // namespace ddprun::doctor::test
