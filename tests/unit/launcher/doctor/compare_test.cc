// Each defect of several nodes together, planted in one of three healthy ones, is found under its
// name, and the node is named.

#include "launcher/doctor/subject.h"

#include <catch2/catch.hpp>
#include <functional>
#include <tuple>

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
  without.set(Real{"meet_ms"}, 0.2);
  without.set(Text{"meet_address"}, std::string("10.0.0.1"));
  for (const Facts& peer : peers) without.add("peers", peer);
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
  CHECK(bad_with(text(1, Text{"version"}, "1.2.2")) == "ddprun fail on node2; ");
  CHECK(bad_with(text(0, Text{"gpu_driver"}, "550.1")) == "GPU driver warn on node1; ");
  CHECK(bad_with(text(2, Text{"bits"}, "fedcba98")) == "same bits warn on node3; ");
  CHECK(bad_with(text(2, Text{"kernel"}, "6.9")).empty());
  CHECK(bad_with([](Nodes& nodes) {
          for (NodeFacts& node : nodes) {
            Facts file;
            file.set(Text{"name"}, std::string("libnccl.so.2"));
            const bool odd = node.host == "node3";
            file.set(Text{"version"}, std::string(odd ? "2.28.9" : "2.30.7"));
            file.set(Text{"hash"}, std::string(odd ? "aaaa" : "bbbb"));
            node.facts.add("files", file);
          }
        }) == "libnccl.so.2 fail on node3; ");
}

TEST_CASE("Doctor: a GPU of another kind names its node", "[doctor]") {
  CHECK(bad_with([](Nodes& nodes) {
          for (NodeFacts& node : nodes) {
            Facts gpu = test::healthy_gpu();
            if (node.host == "node2") gpu.set(Text{"name"}, std::string("A100"));
            node.facts.add("gpus", gpu);
          }
        }) == "GPUs of a kind warn on node2; ");
}

TEST_CASE("Doctor: a clock that is off is named by the middle one", "[doctor]") {
  const auto off = [](std::size_t node, double ms, double doubt) {
    return bad_with([=](Nodes& nodes) {
      nodes[node].facts.set(Real{"clock_offset_ms"}, ms);
      nodes[node].facts.set(Real{"clock_doubt_ms"}, doubt);
    });
  };
  CHECK(off(2, 4'100, 1) == "clock warn on node3; ");
  CHECK(off(0, -4'100, 1) == "clock warn on node1; ");
  CHECK(off(2, 900, 1).empty());
  CHECK(off(2, 4'100, 3'000).empty());  // A slow answer shows nothing.
}

TEST_CASE("Doctor: who does not reach whom is named", "[doctor]") {
  CHECK(bad_with([](Nodes& nodes) {
          nodes[2].facts.set(Text{"meet_error"}, std::string("refused"));
        }) == "reaches :29517 fail on node3; ");
  CHECK(bad_with([](Nodes& nodes) {
          Facts peer = link_to("node3");
          peer.set(Text{"error"}, std::string("no answer"));
          nodes[1].facts.add("peers", peer);
        }) == "reach each other fail on node2; ");
  CHECK(bad_with([](Nodes& nodes) {
          nodes[1].facts = {};
          nodes[1].error = "node2 does not answer ssh";
        }) == "ssh fail ; ");
}

TEST_CASE("Doctor: a translated address and a link of one direction are named", "[doctor]") {
  const auto note_of = [](const std::string& name, const std::function<void(Nodes&)>& plant) {
    Nodes nodes = healthy_nodes();
    plant(nodes);
    for (const Row& row : report_of_nodes(nodes, kNeed).rows) {
      if (row.finding.name == name) return row.finding.note + " | " + row.finding.cure;
    }
    return std::string("no such row");
  };
  const auto translate = [](Nodes& nodes) {
    Facts interface;
    interface.set(Text{"interface"}, std::string("eth0"));
    interface.set(Text{"address"}, std::string("192.168.1.2"));
    nodes[1].facts.add("interfaces", interface);
    nodes[1].facts.set(Text{"meet_address"}, std::string("203.0.113.7"));
  };
  CHECK(bad_with(translate) == "translated to warn on node2; ");
  CHECK(note_of("translated to", translate) ==
        "the endpoint sees node2 as 203.0.113.7, a router's address (NAT): others reach it only if "
        "the router leads there | --one-port");
  CHECK(note_of("translated to", [](Nodes&) {}) == "no such row");
  const auto one_way = [](Nodes& nodes) {
    Facts blocked = link_to("node3");
    blocked.set(Text{"error"}, std::string("no answer"));
    links(nodes[1], {blocked});
    links(nodes[2], {link_to("node2")});
  };
  CHECK(note_of("reach each other", one_way) ==
        "node2 to node3: no answer; node3 reaches node2, so a firewall or a router lets nothing in "
        "to node3 | --one-port");
}

TEST_CASE("Doctor: a slow or lossy link is that of the node that has no other", "[doctor]") {
  CHECK(bad_with([](Nodes& nodes) {
          links(nodes[0], {link_to("node2", 3.0), link_to("node3", 0.3)});
          links(nodes[1], {link_to("node1", 3.0), link_to("node3", 0.3)});
          links(nodes[2], {link_to("node1", 0.3), link_to("node2", 0.3)});
        }) == "to each other warn on node3; ");
  CHECK(bad_with([](Nodes& nodes) {
          Facts peer = link_to("node1");
          peer.set(Whole{"segments_again"}, std::int64_t{900});
          nodes[1].facts.add("peers", peer);
        }) == "packet loss warn on node2; ");
  CHECK(bad_with([](Nodes& nodes) {
          Facts peer = link_to("node1");
          peer.set(Whole{"segments_again"}, std::int64_t{12});  // A loaded machine repeats some.
          nodes[1].facts.add("peers", peer);
        }).empty());
}

TEST_CASE("Doctor: another network that is faster is named, with what uses it", "[doctor]") {
  // All nodes have two networks. `mbit`: of the other one's links, and of that of the names.
  const auto planted = [](Nodes& nodes, double gb_s, std::int64_t mbit, std::int64_t names_mbit,
                          const std::string& error = {}) {
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const std::string last = std::to_string(i + 1);
      const std::string next = "node" + std::to_string((i + 1) % nodes.size() + 1);
      links(nodes[i], {link_to(next, 0.1)});
      for (const auto& [name, stem, speed] :
           {std::tuple("eth0", "10.0.0.", names_mbit), std::tuple("ib0", "10.1.0.", mbit)}) {
        Facts interface;
        interface.set(Text{"interface"}, std::string(name));
        interface.set(Text{"address"}, stem + last);
        interface.set(Text{"subnet"}, std::string(stem) + "0/24");
        if (speed > 0) interface.set(Whole{"speed_mbit"}, speed);
        nodes[i].facts.add("interfaces", interface);
      }
      nodes[i].facts.set(Text{"meet_address"}, "10.0.0." + last);
      Facts link = link_to(next, gb_s);
      link.set(Text{"subnet"}, std::string("10.1.0.0/24"));
      if (!error.empty() && i == 1) link.set(Text{"error"}, error);
      nodes[i].facts.add("other_links", link);
    }
  };
  const auto row = [&](double gb_s, std::int64_t mbit, std::int64_t names_mbit,
                       const std::string& error = {}) {
    Nodes nodes = healthy_nodes();
    planted(nodes, gb_s, mbit, names_mbit, error);
    for (const Row& row : report_of_nodes(nodes, kNeed).rows) {
      if (row.finding.name != "over 10.1.0.0/24") continue;
      return std::to_string(static_cast<int>(row.finding.status)) + " " + row.finding.note + " | " +
             row.finding.cure;
    }
    return std::string("no such row");
  };
  const auto status = [](Status status) { return std::to_string(static_cast<int>(status)) + " "; };
  CHECK(row(9.8, 0, 0) == status(Status::kWarn) +
                              "the network of the names has 0.1 GB/s, and is used | "
                              "DDPRUN_SOCKET_IFNAME=ib0");
  CHECK(row(9.8, 100'000, 1'000) ==
        status(Status::kOk) + "runs send data over it; the network of the names has 0.1 GB/s | ");
  CHECK(row(0.2, 0, 0) == status(Status::kOk) + " | ");
  CHECK(row(9.8, 100'000, 1'000, "no answer") ==
        status(Status::kFail) +
            "runs send data over it, because its links are faster, but node2: no answer | "
            "DDPRUN_SOCKET_IFNAME=INTERFACE, of the network of the names");
  CHECK(row(9.8, 0, 0, "no answer") == status(Status::kOk) + " | ");
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
  CHECK(real(Real{"chunk_ms"}, 2.2) == "computing warn on node2; ");
  CHECK(real(Real{"memory_gb_s"}, 4.0) == "memory speed warn on node2; ");
  CHECK(real(Real{"chunk_ms"}, 0.5).empty());
  CHECK(real(Real{"chunk_ms"}, 1.5).empty());
}

TEST_CASE("Doctor: another MTU than the others' names its node", "[doctor]") {
  CHECK(bad_with([](Nodes& nodes) {
          NodeFacts odd{"node2", {}};
          Facts interface;
          interface.set(Text{"interface"}, std::string("eth0"));
          interface.set(Text{"address"}, std::string("10.9.9.9"));
          interface.set(Whole{"mtu"}, std::int64_t{9'000});
          nodes[1].facts.add("interfaces", interface);
          nodes[1].facts.set(Text{"meet_address"}, std::string("10.9.9.9"));
        }) == "MTU warn on node2; ");
}

TEST_CASE("Doctor: a defect of one node stands in its row and names it", "[doctor]") {
  CHECK(bad_with([](Nodes& nodes) { nodes[1].facts.set(Whole{"files_hard"}, std::int64_t{64}); }) ==
        "open files fail on node2; ");
  CHECK(bad_with([](Nodes& nodes) {
          for (NodeFacts& node : nodes) node.facts.set(Whole{"files_hard"}, std::int64_t{64});
        }) == "open files fail ; ");
}

TEST_CASE("Doctor: the program must be on all nodes", "[doctor]") {
  Nodes nodes = healthy_nodes();
  for (NodeFacts& node : nodes) {
    if (node.host == "node2") {
      node.facts.set(Text{"program_error"}, std::string("there is no program 'train'"));
      continue;
    }
    Facts file;
    file.set(Text{"name"}, std::string("program"));
    file.set(Text{"hash"}, std::string("abcdef0123"));
    node.facts.add("files", file);
  }
  Need need = kNeed;
  need.program = "train";
  CHECK(bad_rows(report_of_nodes(nodes, need)) == "program fail on node2; ");
}

}  // namespace
}  // namespace ddprun::doctor
