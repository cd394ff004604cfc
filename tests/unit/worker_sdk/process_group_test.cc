// Every collective on every backend against a plain reference, ranks being threads.

#include "ddprun/process_group.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <mutex>
#include <random>

#include "tests/support/worlds.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using test::Ranks;

using test::FirstComplaint;
using test::is_right;
using test::kCounts;
using test::view;
using test::World;
using test::worlds;

TEST_CASE("ProcessGroup: an array from allocate() is reduced in place, at any offset",
          "[process_group]") {
  for (const World& world : worlds()) {
    FirstComplaint complaints;
    const auto errors = world.ranks().run([&](auto& group) {
      constexpr std::size_t kBytes = 1 << 20;
      auto memory = group.allocate(kBytes);
      auto second = group.allocate(kBytes / 2);
      auto* begin = static_cast<std::byte*>(memory.get());
      for (std::size_t i = 0; i < kBytes; ++i) {
        if (begin[i] != std::byte(0)) return complaints.add("not zeroed");
      }
      for (const DataType type : test::kAllTypes) {
        for (const std::size_t offset : {std::size_t{0}, std::size_t{64}, std::size_t{4096 + 8}}) {
          const std::size_t count = 70001;
          const auto in = test::inputs(type, group.rank(), count);
          std::memcpy(begin + offset, in.data(), in.size());
          group.all_reduce({begin + offset, count, type}, ReduceOp::sum);
          const std::vector<std::byte> out(begin + offset, begin + offset + in.size());
          if (!is_right(group, type, ReduceOp::sum, out, count)) complaints.add(name_of(type));
        }
      }
      // One rank uses memory of its own: all must take the long way.
      auto own = test::inputs(DataType::f32, group.rank(), 10000);
      std::memcpy(second.get(), own.data(), own.size());
      const bool odd = group.rank() == group.world_size() - 1;
      group.all_reduce({odd ? own.data() : second.get(), 10000, DataType::f32});
      const auto* at = static_cast<std::byte*>(odd ? own.data() : second.get());
      if (!is_right(group, DataType::f32, ReduceOp::sum, {at, at + own.size()}, 10000)) {
        complaints.add("one rank with memory of its own");
      }
    });
    INFO(world.name());
    CHECK(test::outcome(errors) == "all well");
    CHECK(complaints.text() == "");
  }
}

TEST_CASE("ProcessGroup: memory from allocate() outlives its group", "[process_group]") {
  for (const char* backend : {"shm", "gloo"}) {
    std::vector<std::shared_ptr<void>> memories(2);
    const auto errors = Ranks{.backend = backend}.run([&](auto& group) {
      memories[static_cast<std::size_t>(group.rank())] = group.allocate(100);
    });
    REQUIRE(test::outcome(errors) == "all well");
    for (const auto& memory : memories) std::memset(memory.get(), 1, 100);
  }
}

TEST_CASE("ProcessGroup: send and recv keep the order between each pair of ranks",
          "[process_group]") {
  for (const World& world : worlds()) {
    if (world.size() == 1) continue;
    FirstComplaint complaints;
    const auto errors = world.ranks().run([&](auto& group) {
      const int n = group.world_size();
      // A message goes round the ring for each size, so that each rank sends and receives in
      // turn.
      for (const std::size_t count : kCounts) {
        auto bytes = test::inputs(DataType::f32, group.rank(), count);
        for (int hop = 0; hop < n; ++hop) {
          if (group.rank() == hop) group.send(view(DataType::f32, bytes), (hop + 1) % n);
          if (group.rank() == (hop + 1) % n) {
            std::vector<std::byte> got(bytes.size());
            group.recv(view(DataType::f32, got), hop);
            if (got != test::inputs(DataType::f32, hop, count)) complaints.add("ring");
          }
        }
      }
      // Many in a row, while another pair is silent.
      for (std::int32_t i = 0; i < 50 && group.rank() < 2; ++i) {
        std::int32_t value = i;
        if (group.rank() == 0) group.send(buffer(&value, 1), 1);
        if (group.rank() == 1) {
          value = -1;
          group.recv(buffer(&value, 1), 0);
          if (value != i) complaints.add("out of order");
        }
      }
      group.barrier();  // Collectives still agree though ranks sent different numbers of
                        // messages.
    });
    INFO(world.name());
    CHECK(test::outcome(errors) == "all well");
    CHECK(complaints.text() == "");
  }
}

TEST_CASE("ProcessGroup: nobody leaves a barrier before the last has come", "[process_group]") {
  for (const World& world : worlds()) {
    std::atomic<int> arrived{0};
    std::atomic<int> early{0};
    const auto errors = world.ranks().run([&](auto& group) {
      for (int round = 1; round <= 20; ++round) {
        ++arrived;
        group.barrier();
        if (arrived.load() < round * group.world_size()) ++early;
        group.barrier();
      }
    });
    INFO(world.name());
    CHECK(test::outcome(errors) == "all well");
    CHECK(early.load() == 0);
  }
}

TEST_CASE("ProcessGroup: asynchronous operations are carried out in the order of their calls",
          "[process_group]") {
  for (const World& world : worlds()) {
    FirstComplaint complaints;
    const auto errors = world.ranks().run([&](auto& group) {
      constexpr std::size_t kWorks = 20;
      std::vector<std::vector<std::byte>> arrays;
      std::vector<Work> works;
      for (std::size_t i = 0; i < kWorks; ++i) {
        arrays.push_back(test::inputs(DataType::f32, group.rank(), 100 + 3000 * (i % 5)));
      }
      for (auto& array : arrays)
        works.push_back(group.all_reduce_async(view(DataType::f32, array)));
      double last = group.rank();
      group.all_reduce(buffer(&last, 1), ReduceOp::max);  // Behind all of them.
      for (std::size_t i = 0; i < kWorks; ++i) {
        if (!works[i].done()) complaints.add("overtaken");
        works[i].wait();
        if (works[i].duration().count() <= 0) complaints.add("no duration");
        const std::size_t count = arrays[i].size() / 4;
        if (!is_right(group, DataType::f32, ReduceOp::sum, arrays[i], count))
          complaints.add("wrong");
      }
      if (last != group.world_size() - 1) complaints.add("last");
    });
    INFO(world.name());
    CHECK(test::outcome(errors) == "all well");
    CHECK(complaints.text() == "");
  }
}

// The same sequence on all ranks, made of a seed: operation, type, size, memory, synchronous or
// not.
void random_sequence(ProcessGroup& group, std::uint32_t seed, FirstComplaint& complaints) {
  std::mt19937 random(seed);
  const auto pick = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const auto n = static_cast<std::size_t>(group.world_size());
  auto memory = group.allocate(1 << 20);
  for (int step = 0; step < 60; ++step) {
    const DataType type = test::kAllTypes[pick(7)];
    const ReduceOp op = test::is_integer(type) ? ReduceOp::max : test::kAllOps[pick(5)];
    const std::size_t count = pick(4) == 0 ? pick(100000) : pick(3000);
    const int root = static_cast<int>(pick(n));
    const bool shared = pick(2) == 0;
    const std::size_t offset = 64 * pick(100);
    auto own = test::inputs(type, group.rank(), count);
    auto* at = shared ? static_cast<std::byte*>(memory.get()) + offset : own.data();
    if (shared && !own.empty()) std::memcpy(at, own.data(), own.size());
    const Buffer buffer{at, count, type};
    bool right = true;
    switch (pick(4)) {
      case 0:
        group.all_reduce(buffer, op);
        right = is_right(group, type, op, {at, at + own.size()}, count);
        break;
      case 1: {
        Work work = group.all_reduce_async(buffer, op);
        work.wait();
        right = is_right(group, type, op, {at, at + own.size()}, count);
        break;
      }
      case 2:
        group.broadcast(buffer, root);
        right = std::vector<std::byte>(at, at + own.size()) == test::inputs(type, root, count);
        break;
      default: group.barrier();
    }
    if (!right) complaints.add("seed " + std::to_string(seed) + " step " + std::to_string(step));
  }
}

TEST_CASE("ProcessGroup: random sequences of operations agree with the reference",
          "[process_group]") {
  for (std::uint32_t seed = 1; seed <= 4; ++seed) {
    for (const World& world : worlds()) {
      FirstComplaint complaints;
      const auto errors =
          world.ranks().run([&](auto& group) { random_sequence(group, seed, complaints); });
      INFO(world.name() << ", seed " << seed);
      CHECK(test::outcome(errors) == "all well");
      CHECK(complaints.text() == "");
    }
  }
}

TEST_CASE("ProcessGroup: results are the same bits on all ranks and in every run",
          "[process_group]") {
  for (const World& world : worlds()) {
    std::vector<std::vector<float>> results;
    std::mutex mutex;
    for (int run = 0; run < 2; ++run) {
      const auto errors = world.ranks().run([&](auto& group) {
        std::mt19937 random(static_cast<std::uint32_t>(group.rank()));
        std::uniform_real_distribution<float> numbers(-1.0f, 1.0f);
        std::vector<float> values(50000);
        for (float& value : values) value = numbers(random);
        group.all_reduce(buffer(values.data(), values.size()));
        const std::lock_guard lock(mutex);
        results.push_back(values);
      });
      REQUIRE(test::outcome(errors) == "all well");
    }
    for (const auto& result : results) CHECK(result == results.front());
  }
}

TEST_CASE("ProcessGroup: wrong arguments are refused and leave the group alive",
          "[process_group]") {
  for (const World& world : worlds()) {
    std::atomic<int> refused{0};
    const auto errors = world.ranks().run([&](auto& group) {
      const auto expect_refusal = [&](auto call) {
        try {
          call();
        } catch (const Error& error) {
          if (error.kind() == ErrorKind::bad_argument) ++refused;
        }
      };
      std::int32_t integers[8] = {};
      float floats[8] = {};
      expect_refusal([&] { group.all_reduce(buffer(integers, 8), ReduceOp::avg); });
      expect_refusal([&] { group.all_reduce(Buffer{nullptr, 8, DataType::f32}); });
      expect_refusal([&] { group.broadcast(buffer(floats, 8), group.world_size()); });
      expect_refusal([&] { group.broadcast(buffer(floats, 8), -1); });
      expect_refusal([&] { group.all_gather(buffer(floats, 8), buffer(floats, 7)); });
      expect_refusal([&] { group.send(buffer(floats, 8), group.rank()); });
      expect_refusal([&] {
        group.all_reduce(Buffer{reinterpret_cast<char*>(floats) + 1, 1, DataType::f32});
      });
      expect_refusal([&] { (void)group.host_of(group.world_size()); });
      expect_refusal([&] { group.copy(nullptr, floats, sizeof floats); });
      expect_refusal([&] { group.copy(floats, nullptr, sizeof floats); });
      expect_refusal([&] { group.zero(nullptr, 1); });
      group.copy(nullptr, floats, 0);
      group.barrier();
    });
    CHECK(test::outcome(errors) == "all well");
    CHECK(refused.load() == 11 * world.size());
  }
}

TEST_CASE("ProcessGroup: without a launcher a job is a world of one", "[process_group]") {
  ProcessGroup group = ProcessGroup::init();
  CHECK(group.world_size() == 1);
  CHECK(group.backend() == "self");
  CHECK_FALSE(group.host_of(0).empty());
  float value = 3;
  group.all_reduce(buffer(&value, 1), ReduceOp::avg);
  CHECK(value == 3);
  group.store().set("key", "value");
  CHECK(group.store().get("key", 1s) == "value");
  CHECK_THROWS_AS(group.send(buffer(&value, 1), 0), Error);
}

TEST_CASE("ProcessGroup: ranks of one host choose shared memory by themselves", "[process_group]") {
  std::atomic<int> right{0};
  const auto errors = Ranks{.world_size = 3}.run([&](auto& group) {
    const Identity& me = group.identity();
    if (group.backend() == "shm" && me.local_rank == group.rank() && me.local_world_size == 3)
      ++right;
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK(right.load() == 3);
}

}  // namespace
}  // namespace ddprun
