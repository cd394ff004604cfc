// Each defect of several nodes together, planted in one of three healthy ones, is found under its
// name, and the node is named.

#include "launcher/doctor/compare.h"

#include <catch2/catch.hpp>
#include <functional>

#include "tests/unit/launcher/doctor/healthy.h"

namespace ddprun::doctor {
namespace {

using test::healthy_nodes, test::link_to;

const Need kNeed{.workers = 8, .several = true};

std::string bad_rows(const HealthReport& report) {
  std::string text;
  for (const Row& row : report.rows) {
    if (row.finding.status <= Status::kSkipped) continue;
    text += row.finding.name + " " + std::string(to_string(row.finding.status)) + " " + row.where +
            "; ";
  }
  return text;
}

std::string bad_with(const std::function<void(Nodes&)>& plant) {
  Nodes nodes = healthy_nodes();
  plant(nodes);
  return bad_rows(report_of_nodes(nodes, kNeed));
}

// The links of one node, anew.
void links(NodeFacts& node, const std::vector<Facts>& peers) {
  Facts facts = decode_facts(encode(node.facts)).value();
  Facts without = test::healthy(node.host);
  without.set(fact::kMeetMs, 0.2);
  without.set(fact::kMeetAddress, std::string("10.0.0.1"));
  for (const Facts& peer : peers) without.add(fact::kPeers, peer);
  node.facts = without;
}

TEST_CASE("Doctor: healthy nodes have nothing to cure together", "[doctor]") {
  CHECK(bad_with([](Nodes&) {}).empty());
  const HealthReport report = report_of_nodes(healthy_nodes(), kNeed);
  const auto has = [&](const std::string& name) {
    return std::any_of(report.rows.begin(), report.rows.end(),
                       [&](const Row& row) { return row.finding.name == name; });
  };
  for (const char* name : {"ddprun", "same bits", "MTU", "clock", "reaches :29517",
                           "reach each other", "to each other", "packet loss", "computing"}) {
    INFO(name);
    CHECK(has(name));
  }
}

TEST_CASE("Doctor: what should be equal and is not names the odd node", "[doctor]") {
  const auto text = [](std::size_t node, Text fact, const char* value) {
    return [=](Nodes& nodes) { nodes[node].facts.set(fact, std::string(value)); };
  };
  CHECK(bad_with(text(1, fact::kVersion, "1.2.2")) == "ddprun fail on node2; ");
  CHECK(bad_with(text(0, fact::kDriver, "550.1")) == "GPU driver warn on node1; ");
  CHECK(bad_with(text(2, fact::kBits, "fedcba98")) == "same bits warn on node3; ");
  CHECK(bad_with(text(2, fact::kKernel, "6.9")).empty());
  CHECK(bad_with([](Nodes& nodes) {
          for (NodeFacts& node : nodes) {
            Facts file;
            file.set(fact::kFileName, std::string("libnccl.so.2"));
            const bool odd = node.host == "node3";
            file.set(fact::kFileVersion, std::string(odd ? "2.28.9" : "2.30.7"));
            file.set(fact::kFileHash, std::string(odd ? "aaaa" : "bbbb"));
            node.facts.add(fact::kFiles, file);
          }
        }) == "libnccl.so.2 fail on node3; ");
}

TEST_CASE("Doctor: a GPU of another kind names its node", "[doctor]") {
  CHECK(bad_with([](Nodes& nodes) {
          for (NodeFacts& node : nodes) {
            Facts gpu = test::healthy_gpu();
            if (node.host == "node2") gpu.set(fact::kGpuName, std::string("A100"));
            node.facts.add(fact::kGpus, gpu);
          }
        }) == "GPUs of a kind warn on node2; ");
}

TEST_CASE("Doctor: a clock that is off is named by the middle one", "[doctor]") {
  const auto off = [](std::size_t node, double ms, double doubt) {
    return bad_with([=](Nodes& nodes) {
      nodes[node].facts.set(fact::kClockOffsetMs, ms);
      nodes[node].facts.set(fact::kClockDoubtMs, doubt);
    });
  };
  CHECK(off(2, 4'100, 1) == "clock warn on node3; ");
  CHECK(off(0, -4'100, 1) == "clock warn on node1; ");
  CHECK(off(2, 900, 1).empty());
  CHECK(off(2, 4'100, 3'000).empty());  // A slow answer says nothing.
}

TEST_CASE("Doctor: who does not reach whom is named", "[doctor]") {
  CHECK(bad_with([](Nodes& nodes) {
          nodes[2].facts.set(fact::kMeetError, std::string("refused"));
        }) == "reaches :29517 fail on node3; ");
  CHECK(bad_with([](Nodes& nodes) {
          Facts peer = link_to("node3");
          peer.set(fact::kPeerError, std::string("no answer"));
          nodes[1].facts.add(fact::kPeers, peer);
        }) == "reach each other fail on node2; ");
  CHECK(bad_with([](Nodes& nodes) {
          nodes[1].facts = {};
          nodes[1].error = "node2 does not answer ssh";
        }) == "ssh fail ; ");
}

TEST_CASE("Doctor: a slow or lossy link is that of the node that has no other", "[doctor]") {
  CHECK(bad_with([](Nodes& nodes) {
          links(nodes[0], {link_to("node2", 3.0), link_to("node3", 0.3)});
          links(nodes[1], {link_to("node1", 3.0), link_to("node3", 0.3)});
          links(nodes[2], {link_to("node1", 0.3), link_to("node2", 0.3)});
        }) == "to each other warn on node3; ");
  CHECK(bad_with([](Nodes& nodes) {
          Facts peer = link_to("node1");
          peer.set(fact::kPeerAgain, std::int64_t{900});
          nodes[1].facts.add(fact::kPeers, peer);
        }) == "packet loss warn on node2; ");
  CHECK(bad_with([](Nodes& nodes) {
          Facts peer = link_to("node1");
          peer.set(fact::kPeerAgain, std::int64_t{12});  // A loaded machine repeats some.
          nodes[1].facts.add(fact::kPeers, peer);
        }).empty());
}

TEST_CASE("Doctor: of a ring, who sends slowly is named, and not who sends to a slow one",
          "[doctor]") {
  const auto ring = [](double first, double second, double third) {
    return bad_with([=](Nodes& nodes) {
      links(nodes[0], {link_to("node2", first)});
      links(nodes[1], {link_to("node3", second)});
      links(nodes[2], {link_to("node1", third)});
    });
  };
  CHECK(ring(3.0, 3.0, 0.01) == "to each other warn on node3; ");
  CHECK(ring(3.0, 0.01, 0.01) == "to each other warn on node3; ");
  CHECK(ring(1.0, 3.0, 2.0).empty());
}

TEST_CASE("Doctor: a node slower than its peers is named", "[doctor]") {
  const auto real = [](Real fact, double value) {
    return bad_with([=](Nodes& nodes) { nodes[1].facts.set(fact, value); });
  };
  CHECK(real(fact::kChunkMs, 2.2) == "computing warn on node2; ");
  CHECK(real(fact::kMemoryGbS, 4.0) == "memory speed warn on node2; ");
  CHECK(real(fact::kChunkMs, 0.5).empty());
  CHECK(real(fact::kChunkMs, 1.5).empty());
}

TEST_CASE("Doctor: another MTU than the others' names its node", "[doctor]") {
  CHECK(bad_with([](Nodes& nodes) {
          NodeFacts odd{"node2", {}};
          Facts interface;
          interface.set(fact::kInterface, std::string("eth0"));
          interface.set(fact::kAddress, std::string("10.9.9.9"));
          interface.set(fact::kMtu, std::int64_t{9'000});
          nodes[1].facts.add(fact::kInterfaces, interface);
          nodes[1].facts.set(fact::kMeetAddress, std::string("10.9.9.9"));
        }) == "MTU warn on node2; ");
}

TEST_CASE("Doctor: a defect of one node stands in its row and names it", "[doctor]") {
  CHECK(bad_with([](Nodes& nodes) { nodes[1].facts.set(fact::kFilesHard, std::int64_t{64}); }) ==
        "open files fail on node2; ");
  CHECK(bad_with([](Nodes& nodes) {
          for (NodeFacts& node : nodes) node.facts.set(fact::kFilesHard, std::int64_t{64});
        }) == "open files fail ; ");
}

TEST_CASE("Doctor: the program must be on all nodes", "[doctor]") {
  Nodes nodes = healthy_nodes();
  for (NodeFacts& node : nodes) {
    if (node.host == "node2") {
      node.facts.set(fact::kProgramError, std::string("there is no program 'train'"));
      continue;
    }
    Facts file;
    file.set(fact::kFileName, std::string("program"));
    file.set(fact::kFileHash, std::string("abcdef0123"));
    node.facts.add(fact::kFiles, file);
  }
  Need need = kNeed;
  need.program = "train";
  CHECK(bad_rows(report_of_nodes(nodes, need)) == "program fail on node2; ");
}

}  // namespace
}  // namespace ddprun::doctor
