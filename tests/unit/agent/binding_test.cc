// What --numa-binding makes of machines as hwloc describes them.

#include "agent/placement/binding.h"

#include <algorithm>
#include <catch2/catch.hpp>

#include "agent/placement/topology.h"

namespace ddprun::agent {
namespace {

using Lines = std::vector<std::string>;

Machine machine_of(const std::string& synthetic) { return read_machine(synthetic).value(); }

Lines bound(const std::string& synthetic, NumaBinding binding, const std::vector<int>& nodes) {
  const auto processors = bind_workers(machine_of(synthetic), binding, nodes);
  if (!processors) return {processors.error().context};
  Lines lines;
  for (const auto& own : *processors) lines.push_back(processors_text(own));
  return lines;
}

// Two sockets of two NUMA nodes each, two L3 a node, four cores behind each, two threads a core.
const std::string kBig = "pack:2 numa:2 l3:2 core:4 pu:2";
// One socket, as a laptop is.
const std::string kSmall = "pack:1 l3:1 core:4 pu:1";

TEST_CASE("Binding: a machine is read with its nodes, sockets, cores and caches", "[binding]") {
  const Machine big = machine_of(kBig);
  REQUIRE(big.nodes.size() == 4);
  CHECK(big.nodes[1].number == 1);
  CHECK(big.nodes[1].socket == 0);
  CHECK(big.nodes[2].socket == 1);
  CHECK(big.nodes[3].cores.size() == 8);
  CHECK(big.nodes[3].cores[0] == std::vector<int>{48, 49});
  CHECK(big.nodes[3].caches.size() == 2);
  CHECK(machine_of(kSmall).nodes.size() == 1);
}

TEST_CASE("Binding: node and socket follow the GPU", "[binding]") {
  CHECK(bound(kBig, NumaBinding::kNode, {3, 0, 3}) == Lines{"48-63", "0-15", "48-63"});
  CHECK(bound(kBig, NumaBinding::kSocket, {3, 0}) == Lines{"32-63", "0-31"});
  CHECK(bound(kSmall, NumaBinding::kNode, {-1, -1}) == Lines{"0-3", "0-3"});
}

TEST_CASE("Binding: exclusive shares a node's cores, the first workers get what is over",
          "[binding]") {
  CHECK(bound(kBig, NumaBinding::kExclusive, {0, 0, 0}) == Lines{"0-5", "6-11", "12-15"});
  CHECK(bound(kBig, NumaBinding::kExclusive, {1, 0, 1}) == Lines{"16-23", "0-15", "24-31"});
  CHECK(bound(kSmall, NumaBinding::kExclusive, {-1, -1, -1, -1, -1}) ==
        Lines{"--numa-binding exclusive: NUMA node 0 has 4 cores for 5 workers; try node"});
}

TEST_CASE("Binding: workers take turns on the core complexes", "[binding]") {
  CHECK(bound(kBig, NumaBinding::kCoreComplex, {1, 1, 1}) == Lines{"16-23", "24-31", "16-23"});
  CHECK(bound("pack:1 core:2 pu:2", NumaBinding::kCoreComplex, {-1}) == Lines{"0-3"});  // No cache.
}

TEST_CASE("Binding: without GPUs the first nodes get the first workers", "[binding]") {
  CHECK(bound(kBig, NumaBinding::kNode, std::vector<int>(8, -1)) ==
        Lines{"0-15", "0-15", "16-31", "16-31", "32-47", "32-47", "48-63", "48-63"});
  CHECK(bound(kBig, NumaBinding::kNode, {-1, -1}) == Lines{"0-15", "32-47"});
  CHECK(bound(kBig, NumaBinding::kNode, {9}) == Lines{"0-15"});  // A node that is not there.
}

TEST_CASE("Binding: exclusive shares of any machine are disjoint and use every core", "[binding]") {
  for (const char* synthetic : {"pack:1 numa:1 l3:1 core:7 pu:2", "pack:2 numa:1 l3:3 core:5 pu:1",
                                "pack:4 numa:2 core:6 pu:2", "numa:3 core:3 pu:4"}) {
    const Machine machine = machine_of(synthetic);
    std::size_t processors = 0;
    for (const NumaNode& node : machine.nodes) {
      for (const auto& core : node.cores) processors += core.size();
    }
    for (std::size_t workers = machine.nodes.size(); workers <= 3 * machine.nodes.size();
         ++workers) {
      INFO(synthetic << ", " << workers << " workers");
      const auto shares =
          bind_workers(machine, NumaBinding::kExclusive, std::vector<int>(workers, -1)).value();
      std::vector<int> seen;
      for (const auto& own : shares) {
        CHECK_FALSE(own.empty());
        CHECK(count_cores(machine, own) > 0);
        seen.insert(seen.end(), own.begin(), own.end());
      }
      std::sort(seen.begin(), seen.end());
      CHECK(std::adjacent_find(seen.begin(), seen.end()) == seen.end());
      CHECK(seen.size() == processors);
    }
  }
}

TEST_CASE("Binding: no binding, no machine: nothing is bound", "[binding]") {
  CHECK(bound(kBig, NumaBinding::kNone, {0, 1}) == Lines{"", ""});
  CHECK(bind_workers({}, NumaBinding::kNode, {0}).value() == std::vector<std::vector<int>>{{}});
  CHECK(read_machine("nonsense:x").has_error());
}

TEST_CASE("Binding: this machine has what we may use of it", "[binding]") {
  const auto machine = read_machine();
  REQUIRE(machine.has_value());
  REQUIRE_FALSE(machine->nodes.empty());
  CHECK_FALSE(machine->nodes[0].cores.empty());
}

TEST_CASE("Binding: processors are written as the kernel writes them", "[binding]") {
  CHECK(processors_text({}).empty());
  CHECK(processors_text({0}) == "0");
  CHECK(processors_text({0, 1, 2, 3, 8, 10, 11}) == "0-3,8,10-11");
}

}  // namespace
}  // namespace ddprun::agent
