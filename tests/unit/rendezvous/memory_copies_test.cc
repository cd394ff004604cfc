#include "rendezvous/run/memory_copies.h"

#include <catch2/catch.hpp>
#include <map>
#include <random>
#include <set>

namespace ddprun::rendezvous {
namespace {

MemoryPeer peer(const std::string& node, const std::string& address) {
  return {node, "host of " + node, address, 4000};
}

std::vector<MemoryPeer> peers(const std::vector<std::string>& nodes) {
  std::vector<MemoryPeer> all;
  for (const std::string& node : nodes) all.push_back(peer(node, "10.0.0." + node));
  return all;
}

// "a>b" per node: where its folder is copied to; "a<c/x,y": filled from c, where it is x or y.
std::string texts(const std::vector<std::string>& nodes,
                  const std::vector<MemoryCopies::Order>& orders) {
  std::string text;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    text += (i ? " " : "") + nodes[i] + ">" + (orders[i].copy_to ? orders[i].copy_to->node : "-");
    if (!orders[i].fill) continue;
    text += "<" + orders[i].fill->from.node + "/";
    for (const NodeId& name : orders[i].fill->as) text += name;
  }
  return text;
}

std::string seal(MemoryCopies& copies, const std::vector<std::string>& nodes) {
  return texts(nodes, copies.seal(peers(nodes)));
}

TEST_CASE("Memory copies: every node has one copy, on the next node") {
  MemoryCopies copies;
  CHECK(seal(copies, {"a"}) == "a>-");
  CHECK(seal(copies, {"a", "b"}) == "a>b b>a");
  MemoryCopies four;
  CHECK(seal(four, {"a", "b", "c", "d"}) == "a>b b>c c>d d>a");
}

TEST_CASE("Memory copies: a holder stays while both are there") {
  MemoryCopies copies;
  CHECK(seal(copies, {"a", "b", "c"}) == "a>b b>c c>a");
  CHECK(seal(copies, {"c", "a", "b"}) == "c>a a>b b>c");
  CHECK(seal(copies, {"a", "c"}) == "a>c c>a");
}

TEST_CASE("Memory copies: a new node is filled with the copy of a lost one") {
  MemoryCopies copies;
  seal(copies, {"a", "b", "c"});
  CHECK(seal(copies, {"a", "c", "d"}) == "a>d c>a d>c<c/b");
  SECTION("and only one node is") {
    CHECK(seal(copies, {"a", "c", "d", "e"}) == "a>d c>a d>c e>a");
  }
  SECTION("a later one by both names, if the new one was lost before it was filled") {
    CHECK(seal(copies, {"a", "c", "e"}) == "a>e c>a e>c<c/db");
  }
}

TEST_CASE("Memory copies: the copy of a lost node waits for a new one through smaller rounds") {
  MemoryCopies copies;
  seal(copies, {"a", "b", "c"});
  CHECK(seal(copies, {"a", "c"}) == "a>c c>a");
  CHECK(seal(copies, {"a", "c", "d"}) == "a>c c>a d>c<c/b");
}

TEST_CASE("Memory copies: nothing is left of a node that is lost with its holder") {
  MemoryCopies copies;
  seal(copies, {"a", "b", "c", "d"});
  CHECK(seal(copies, {"a", "d", "e", "f"}) == "a>e d>a e>d<d/c f>a");  // b went with c.
}

TEST_CASE("Memory copies: another host is preferred to another node of the same host") {
  MemoryCopies copies;
  const auto orders = copies.seal({peer("a", "1"), peer("b", "1"), peer("c", "2"), peer("d", "2")});
  CHECK(texts({"a", "b", "c", "d"}, orders) == "a>c b>d c>a d>b");
}

TEST_CASE("Memory copies: whoever comes and goes, holders are of the round, and loads are even") {
  std::mt19937 random(7);
  for (int game = 0; game < 200; ++game) {
    MemoryCopies copies;
    std::vector<std::string> nodes;
    std::set<std::string> filled_with;
    int next = 0;
    for (int round = 0; round < 12; ++round) {
      for (std::size_t i = 0; i < nodes.size();) {
        random() % 4 == 0 ? static_cast<void>(nodes.erase(nodes.begin() + static_cast<int>(i)))
                          : static_cast<void>(++i);
      }
      const int more = static_cast<int>(random() % 3) + (nodes.empty() ? 1 : 0);
      for (int i = 0; i < more; ++i) nodes.push_back("n" + std::to_string(next++));
      std::shuffle(nodes.begin(), nodes.end(), random);
      const auto orders = copies.seal(peers(nodes));
      const std::set<std::string> here(nodes.begin(), nodes.end());
      REQUIRE(orders.size() == nodes.size());
      for (std::size_t i = 0; i < nodes.size(); ++i) {
        INFO(texts(nodes, orders));
        REQUIRE(orders[i].copy_to.has_value() == (nodes.size() > 1));
        if (orders[i].copy_to) CHECK(here.contains(orders[i].copy_to->node));
        if (orders[i].copy_to) CHECK(orders[i].copy_to->node != nodes[i]);
        if (!orders[i].fill) continue;
        CHECK(here.contains(orders[i].fill->from.node));
        CHECK_FALSE(here.contains(orders[i].fill->as.front()));
        CHECK(filled_with.insert(orders[i].fill->as.front()).second);  // One node takes it.
      }
    }
  }
}

}  // namespace
}  // namespace ddprun::rendezvous
