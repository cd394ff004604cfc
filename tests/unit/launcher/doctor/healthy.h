#pragma once
// The facts of a node on which all is well, for tests that spoil one of them.

#include "launcher/doctor/fact_names.h"
#include "launcher/doctor/health_report.h"

namespace ddprun::doctor::test {

inline Facts healthy_gpu() {
  Facts gpu;
  gpu.set(fact::kGpuName, std::string("H100"));
  gpu.set(fact::kGpuWidth, std::int64_t{16});
  gpu.set(fact::kGpuWidthMax, std::int64_t{16});
  gpu.set(fact::kGpuLinks, std::int64_t{18});
  gpu.set(fact::kGpuCelsius, std::int64_t{45});
  return gpu;
}

inline void add_machine(Facts& facts) {
  facts.set(fact::kFilesSoft, std::int64_t{1'024});
  facts.set(fact::kFilesHard, std::int64_t{1'048'576});
  facts.set(fact::kLocked, fact::kNoLimit);
  facts.set(fact::kCore, std::int64_t{0});
  facts.set(fact::kTasksLeft, std::int64_t{62'914});
  facts.set(fact::kShmFree, std::int64_t{252'000'000'000});
  facts.set(fact::kShmSize, std::int64_t{252'000'000'000});
  facts.set(fact::kTmp, std::string("/tmp"));
  facts.set(fact::kTmpFree, std::int64_t{310'000'000'000});
  facts.set(fact::kTmpInodes, std::int64_t{1'000'000});
  facts.set(fact::kTmpNoExec, std::int64_t{0});
  facts.set(fact::kProcessors, std::int64_t{64});
  facts.set(fact::kMemoryLeft, std::int64_t{512'000'000'000});
  facts.set(fact::kMemoryBy, std::string("machine"));
  facts.set(fact::kCgroup, std::string("/sys/fs/cgroup/mine"));
  facts.set(fact::kClockErrorMs, 0.4);
  facts.set(fact::kChunkMs, 1.0);
  facts.set(fact::kMemoryGbS, 20.0);
}

inline Facts healthy(const std::string& host = "node1") {
  Facts facts;
  facts.set(fact::kHost, host);
  facts.set(fact::kVersion, std::string("1.2.3"));
  facts.set(fact::kBits, std::string("0123456789abcdef"));
  facts.set(fact::kDriver, std::string("580.65"));
  add_machine(facts);
  facts.set(fact::kOwnAddresses, std::string("10.0.0.1"));
  facts.set(fact::kNameMs, 0.5);
  facts.set(fact::kPort, std::int64_t{29'400});
  facts.set(fact::kLoopback, 3.0);
  Facts interface;
  interface.set(fact::kInterface, std::string("eth0"));
  interface.set(fact::kAddress, std::string("10.0.0.1"));
  interface.set(fact::kMtu, std::int64_t{1'500});
  interface.set(fact::kPackets, std::int64_t{1'000'000});
  facts.add(fact::kInterfaces, interface);
  return facts;
}

// A link from `facts`' node to `name`.
inline Facts link_to(const std::string& name, double gb_s = 3.0) {
  Facts peer;
  peer.set(fact::kPeer, name);
  peer.set(fact::kPeerMs, 0.2);
  peer.set(fact::kPeerGbS, gb_s);
  peer.set(fact::kPeerSent, std::int64_t{10'000});
  peer.set(fact::kPeerAgain, std::int64_t{0});
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
      reached.set(fact::kPeer, other);
      node.facts.add(fact::kPeers, reached);
      node.facts.add(fact::kPeers, link_to(other));
    }
    node.facts.set(fact::kMeetMs, 0.2);
    node.facts.set(fact::kMeetAddress, std::string("10.0.0.1"));
    node.facts.set(fact::kClockOffsetMs, 0.3);
    node.facts.set(fact::kClockDoubtMs, 0.5);
    nodes.push_back(std::move(node));
  }
  nodes.front().facts.set(fact::kEndpoint, std::int64_t{29'517});
  return nodes;
}

}  // namespace ddprun::doctor::test
