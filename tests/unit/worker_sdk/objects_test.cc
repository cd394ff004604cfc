// Small objects, metrics and seeds between ranks, on every backend. Ranks are threads: they collect
// what is wrong in FirstComplaint.

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/support/worlds.h"

namespace ddprun {
namespace {

using test::FirstComplaint;
using test::outcome;
using test::Ranks;

// Of another length on each rank, none on every third; with bytes of every value.
std::string bytes_of(int rank) {
  std::string text;
  for (int i = 0; i < (rank % 3) * 700; ++i) text += static_cast<char>(rank * 31 + i);
  return text;
}

std::string wrong_on(ProcessGroup& group) {
  const int n = group.world_size();
  for (int root = 0; root < n; ++root) {
    if (broadcast_bytes(group, bytes_of(group.rank()), root) != bytes_of(root)) return "broadcast";
    const auto parts = gather_bytes(group, bytes_of(group.rank()), root);
    if (parts.size() != (group.rank() == root ? static_cast<std::size_t>(n) : 0)) return "gather";
    for (std::size_t r = 0; r < parts.size(); ++r) {
      if (parts[r] != bytes_of(static_cast<int>(r))) return "a part of gather";
    }
  }
  const auto all = all_gather_bytes(group, bytes_of(group.rank()));
  for (int r = 0; r < n; ++r) {
    if (all.at(static_cast<std::size_t>(r)) != bytes_of(r)) return "all_gather";
  }
  return "";
}

}  // namespace

TEST_CASE("Objects: bytes of any lengths reach whom they shall, on every backend") {
  for (const test::World& world : test::worlds()) {
    INFO(world.name());
    FirstComplaint complaints;
    const auto errors = world.ranks().run([&](ProcessGroup& group) {
      const std::string wrong = wrong_on(group);
      if (!wrong.empty()) complaints.add(wrong + " on rank " + std::to_string(group.rank()));
    });
    CHECK(outcome(errors) == "all well");
    CHECK(complaints.text() == "");
  }
}

TEST_CASE("Objects: a root that does not exist is refused, and the group lives on") {
  const auto errors = Ranks{.world_size = 2}.run([](ProcessGroup& group) {
    for (const int root : {-1, 2}) {
      try {
        (void)broadcast_bytes(group, "x", root);
        throw Error(ErrorKind::mismatch, {}, "a wrong root was taken");
      } catch (const Error& e) {
        if (e.kind() != ErrorKind::bad_argument) throw;
      }
    }
    if (broadcast_bytes(group, group.rank() == 1 ? "alive" : "", 1) != "alive") {
      throw Error(ErrorKind::mismatch, {}, "the group does not go on");
    }
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Metrics: averages are weighted over all ranks, each of which may have other names") {
  FirstComplaint complaints;
  const auto errors = Ranks{.world_size = 3}.run([&](ProcessGroup& group) {
    const double r = group.rank();
    Metrics metrics;
    metrics.add("loss", 1 + r, 10);
    metrics.add("loss", 4, 2 * r);
    if (group.rank() == 1) metrics.add("only here", -3);
    const auto all = metrics.reduce(group);
    const Metric& loss = all.at("loss");
    const double sum = (10 + 20 + 30) + 4 * (0 + 2 + 4);
    if (loss.sum != sum || loss.weight != 36 || loss.average != sum / 36) complaints.add("loss");
    if (loss.min != 1 || loss.max != 4) complaints.add("min or max");
    if (all.size() != 2 || all.at("only here").average != -3) complaints.add("only here");
    if (!metrics.local().empty() || !metrics.reduce(group).empty()) complaints.add("not forgotten");
    if (average_over_ranks(group, r) != 1) complaints.add("average_over_ranks");
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "");
}

TEST_CASE("Metrics: this rank's own are known before they are reduced, weights are checked") {
  Metrics metrics;
  metrics.add("accuracy", 0.5, 4);
  metrics.add("accuracy", 1, 12);
  CHECK(metrics.local().at("accuracy").average == 0.875);
  CHECK_THROWS_AS(metrics.add("accuracy", 1, -1), Error);
  CHECK_THROWS_AS(metrics.add("accuracy", 1, std::nan("")), Error);
}

TEST_CASE("Seeds: a rank's is seed + rank, epochs share none, a shared one is everybody's") {
  CHECK(rank_seed(40, 2) == 42);
  CHECK(rank_seed(40, 3, 4, 0) + 1 == rank_seed(40, 0, 4, 1));
  FirstComplaint complaints;
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    const auto seed = shared_seed(group);
    const auto all = all_gather_bytes(group, std::to_string(seed));
    if (all[0] != all[1]) complaints.add("seeds differ");
    if (shared_seed(group) == seed) complaints.add("the same seed twice");
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "");
}

}  // namespace ddprun
