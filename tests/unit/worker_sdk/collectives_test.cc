// Every collective x element type x reduction x size x backend x form against a plain reference,
// ranks being threads; and groups that are split off.

#include <atomic>
#include <catch2/catch.hpp>
#include <numeric>

#include "tests/support/worlds.h"

namespace ddprun {
namespace {

using test::FirstComplaint;
using test::kCounts;
using test::view;
using test::World;
using test::worlds;

using Bytes = std::vector<std::byte>;

struct Case {
  DataType type;
  ReduceOp op;
  std::size_t count;  // Of each part.
  int root;
};

// What rank `rank` puts in, `parts` parts of it, each another one.
Bytes input_of(const Case& c, int rank, int parts = 1) {
  Bytes bytes;
  for (int p = 0; p < parts; ++p) {
    const Bytes part = test::inputs(c.type, rank + p, c.count);
    bytes.insert(bytes.end(), part.begin(), part.end());
  }
  return bytes;
}

// Part `part` of all ranks' inputs, reduced.
Bytes reduced_part(const Case& c, int ranks, int part) {
  Bytes bytes(c.count * size_of(c.type));
  for (std::size_t i = 0; i < c.count; ++i) {
    test::put(c.type, bytes, i, test::reduced(c.op, ranks, i, part));
  }
  return bytes;
}

Bytes joined(int n, const std::function<Bytes(int)>& part) {
  Bytes bytes;
  for (int r = 0; r < n; ++r) {
    const Bytes one = part(r);
    bytes.insert(bytes.end(), one.begin(), one.end());
  }
  return bytes;
}

// How the arrays of a call lie.
enum class Memory {
  kOwn,     // Input and output anywhere.
  kShared,  // The larger one from allocate().
  kInPlace  // The smaller one is this rank's part of the larger one.
};

// The arrays of one call. `whole` has a part for each rank, `part` is one.
struct Arrays {
  Arrays(ProcessGroup& group, std::byte* shared, const Case& c, Memory memory)
      : part_bytes(c.count * size_of(c.type)),
        whole_bytes(part_bytes * static_cast<std::size_t>(group.world_size())),
        own_part(part_bytes, std::byte(0xee)),
        own_whole(whole_bytes, std::byte(0xee)) {
    whole = {memory == Memory::kShared ? shared : own_whole.data(),
             c.count * static_cast<std::size_t>(group.world_size()), c.type};
    const std::size_t at = part_bytes * static_cast<std::size_t>(group.rank());
    part = {memory == Memory::kInPlace ? own_whole.data() + at : own_part.data(), c.count, c.type};
  }
  static void fill(Buffer buffer, const Bytes& bytes) {
    if (!bytes.empty()) std::memcpy(buffer.data, bytes.data(), bytes.size());
  }
  static Bytes read(Buffer buffer) {
    const auto* data = static_cast<const std::byte*>(buffer.data);
    return {data, data + buffer.bytes()};
  }

  std::size_t part_bytes, whole_bytes;
  Bytes own_part, own_whole;
  Buffer part, whole;
};

// One way to call one collective: fills the arrays, calls, and gives what came out and what should.
struct Outcome {
  Bytes got, want;
};
using Trial = Outcome (*)(ProcessGroup&, Arrays&, const Case&, bool async);

Outcome all_reduce(ProcessGroup& group, Arrays& a, const Case& c, bool async) {
  Arrays::fill(a.whole, input_of(c, group.rank(), group.world_size()));
  async ? group.all_reduce_async(a.whole, c.op).wait() : group.all_reduce(a.whole, c.op);
  const int n = group.world_size();
  return {Arrays::read(a.whole), joined(n, [&](int p) { return reduced_part(c, n, p); })};
}

Outcome reduce_scatter(ProcessGroup& group, Arrays& a, const Case& c, bool async) {
  Arrays::fill(a.whole, input_of(c, group.rank(), group.world_size()));
  async ? group.reduce_scatter_async(a.whole, a.part, c.op).wait()
        : group.reduce_scatter(a.whole, a.part, c.op);
  return {Arrays::read(a.part), reduced_part(c, group.world_size(), group.rank())};
}

Outcome broadcast(ProcessGroup& group, Arrays& a, const Case& c, bool async) {
  Arrays::fill(a.whole, input_of(c, group.rank(), group.world_size()));
  async ? group.broadcast_async(a.whole, c.root).wait() : group.broadcast(a.whole, c.root);
  return {Arrays::read(a.whole), input_of(c, c.root, group.world_size())};
}

Outcome all_gather(ProcessGroup& group, Arrays& a, const Case& c, bool async) {
  Arrays::fill(a.part, input_of(c, group.rank()));
  async ? group.all_gather_async(a.part, a.whole).wait() : group.all_gather(a.part, a.whole);
  return {Arrays::read(a.whole), joined(group.world_size(), [&](int r) { return input_of(c, r); })};
}

Outcome all_to_all(ProcessGroup& group, Arrays& a, const Case& c, bool async) {
  const int n = group.world_size();
  const bool in_place = a.part.data != a.own_part.data();
  Bytes other(a.whole_bytes);
  const Buffer out = in_place ? a.whole : view(c.type, other);
  Arrays::fill(a.whole, input_of(c, group.rank(), n));
  async ? group.all_to_all_async(a.whole, out).wait() : group.all_to_all(a.whole, out);
  return {Arrays::read(out), joined(n, [&](int r) {
            const Bytes theirs = input_of(c, r, n);
            const auto at = static_cast<std::ptrdiff_t>(a.part_bytes) * group.rank();
            return Bytes(theirs.begin() + at,
                         theirs.begin() + at + static_cast<std::ptrdiff_t>(a.part_bytes));
          })};
}

Outcome gather(ProcessGroup& group, Arrays& a, const Case& c, bool async) {
  Arrays::fill(a.part, input_of(c, group.rank()));
  const bool is_root = group.rank() == c.root;
  const Buffer out = is_root ? a.whole : Buffer{};
  async ? group.gather_async(a.part, out, c.root).wait() : group.gather(a.part, out, c.root);
  if (!is_root) return {Arrays::read(a.part), input_of(c, group.rank())};
  return {Arrays::read(a.whole), joined(group.world_size(), [&](int r) { return input_of(c, r); })};
}

Outcome scatter(ProcessGroup& group, Arrays& a, const Case& c, bool async) {
  const bool is_root = group.rank() == c.root;
  if (is_root) Arrays::fill(a.whole, input_of(c, group.rank(), group.world_size()));
  const Buffer in = is_root ? a.whole : Buffer{};
  async ? group.scatter_async(in, a.part, c.root).wait() : group.scatter(in, a.part, c.root);
  return {Arrays::read(a.part), test::inputs(c.type, c.root + group.rank(), c.count)};
}

// A message to the next rank from every second one, then the other way round.
Outcome messages(ProcessGroup& group, Arrays& a, const Case& c, bool async) {
  const int n = group.world_size(), me = group.rank();
  if (n == 1) return {};
  const int partner = me % 2 == 0 ? me + 1 : me - 1;
  if (partner == n) return {};
  Bytes mine = input_of(c, me);
  const auto send = [&] {
    async ? group.send_async(view(c.type, mine), partner).wait()
          : group.send(view(c.type, mine), partner);
  };
  const auto recv = [&] {
    async ? group.recv_async(a.part, partner).wait() : group.recv(a.part, partner);
  };
  if (me < partner) send(), recv();
  if (me > partner) recv(), send();
  return {Arrays::read(a.part), input_of(c, partner)};
}

Outcome reduce(ProcessGroup& group, Arrays& a, const Case& c, bool async) {
  const Bytes mine = input_of(c, group.rank());
  Arrays::fill(a.part, mine);
  const bool is_root = group.rank() == c.root;
  Bytes elsewhere(mine.size());
  const Buffer out = is_root && c.count % 2 == 0 ? a.part : view(c.type, elsewhere);
  async ? group.reduce_async(a.part, out, c.root, c.op).wait()
        : group.reduce(a.part, out, c.root, c.op);
  if (!is_root) return {Arrays::read(a.part), mine};
  return {Arrays::read(out), test::expected(c.type, c.op, group.world_size(), c.count)};
}

struct Collective {
  const char* name;
  bool reduces;
  bool has_root;
  Trial trial;
};

constexpr Collective kCollectives[] = {{"all_reduce", true, false, all_reduce},
                                       {"reduce_scatter", true, false, reduce_scatter},
                                       {"broadcast", false, true, broadcast},
                                       {"all_gather", false, false, all_gather},
                                       {"all_to_all", false, false, all_to_all},
                                       {"gather", false, true, gather},
                                       {"scatter", false, true, scatter},
                                       {"send and recv", false, false, messages},
                                       {"reduce", true, true, reduce}};

void try_one(ProcessGroup& group, std::byte* shared, const Collective& what, const Case& c,
             FirstComplaint& complaints) {
  for (const Memory memory : {Memory::kOwn, Memory::kShared, Memory::kInPlace}) {
    Arrays arrays(group, shared, c, memory);
    const bool async = (c.count + static_cast<std::size_t>(c.root)) % 2 == 0;
    const Outcome outcome = what.trial(group, arrays, c, async);
    if (test::equal_on(group.backend(), c.type, c.op, outcome.got, outcome.want)) continue;
    complaints.add(std::string(name_of(c.type)) + " " + name_of(c.op) + " " +
                   std::to_string(c.count) + " root " + std::to_string(c.root) + " memory " +
                   std::to_string(static_cast<int>(memory)));
  }
}

// Every small case, and all sizes with a few types and reductions: the arithmetic is the same for
// all sizes. It is no matter for ThreadSanitizer, at a tenth of the speed.
bool worth_trying(const Case& c, [[maybe_unused]] int ranks) {
#ifdef __SANITIZE_THREAD__
  if (c.type != DataType::f32 && c.type != DataType::bf16) return false;
  if (c.count > 1025 && (c.type != DataType::f32 || c.op != ReduceOp::sum)) return false;
  return c.root == 0 || c.root == ranks - 1;
#else
  const bool rare = c.type > DataType::u8 || c.op > ReduceOp::prod;
  if (rare) return c.root == 0 && c.count == (c.type == DataType::c128 ? 1025 : 7);
  const bool every_size = c.type == DataType::f32 || c.type == DataType::bf16;
  const bool is_sum = c.op == ReduceOp::sum || c.op == ReduceOp::avg;
  return c.count <= 1025 || (every_size && is_sum);
#endif
}

// Where arrays only move, a type is its size. Of NCCL's own there are fewer.
bool worth_trying(const Collective& what, DataType type, ReduceOp op) {
  const bool rare = type > DataType::u8 || op > ReduceOp::prod;
  if (std::string_view(test::kAnyBackend) == "nccl") return !rare;
  return what.reduces || !rare || type == DataType::c128;
}

void try_all(ProcessGroup& group, const Collective& what, FirstComplaint& complaints) {
  const int n = group.world_size();
  auto memory = group.allocate(sizeof(double) * 70001 * static_cast<std::size_t>(n));
  auto* shared = static_cast<std::byte*>(memory.get());
  for (const DataType type : test::kEveryType) {
    for (const ReduceOp op : test::kEveryOp) {
      if (!what.reduces && op != ReduceOp::sum) continue;
      if (!is_defined(type, op) || !worth_trying(what, type, op)) continue;
      for (const std::size_t count : kCounts) {
        const int roots = what.has_root ? n : 1;
        for (int root = 0; root < roots; ++root) {
          const Case one{type, op, count, root};
          if (worth_trying(one, n)) try_one(group, shared, what, one, complaints);
        }
      }
    }
  }
  group.barrier();
}

TEST_CASE("Collectives: each is right for every type, reduction, size, root, memory and form",
          "[collectives]") {
  for (const World& world : worlds()) {
    for (const Collective& what : kCollectives) {
      FirstComplaint complaints;
      const auto errors = world.ranks().run([&](auto& group) { try_all(group, what, complaints); });
      INFO(what.name << ", " << world.name());
      CHECK(test::outcome(errors) == "all well");
      CHECK(complaints.text() == "");
    }
  }
}

TEST_CASE("Collectives: sums of halves do not overflow on the way to their average",
          "[collectives]") {
  for (const World& world : worlds()) {
    FirstComplaint complaints;
    const auto errors = world.ranks().run([&](auto& group) {
      for (const std::size_t count : {std::size_t{5}, std::size_t{9000}}) {
        std::vector<std::uint16_t> values(count, worker_sdk::f32_to_f16(60000));
        group.all_reduce({values.data(), count, DataType::f16}, ReduceOp::avg);
        const float got = worker_sdk::f16_to_f32(values[count - 1]);
        if (std::abs(got - 60000) > 64) complaints.add(std::to_string(got));
      }
    });
    INFO(world.name());
    CHECK(test::outcome(errors) == "all well");
    CHECK(complaints.text() == "");
  }
}

#ifndef DDPRUN_FAKES
// The products and their sums are exact in f32, and none of them is a half.
TEST_CASE("Collectives: a premul_sum of halves is rounded once, at the end", "[collectives]") {
  for (const World& world : worlds()) {
    FirstComplaint complaints;
    const auto errors = world.ranks().run([&](ProcessGroup& group) {
      const auto n = static_cast<std::size_t>(group.world_size());
      const auto factor_of = [](std::size_t r) { return 1 + static_cast<double>(r + 1) / 1024; };
      const auto value = [](std::size_t r, std::size_t i) {
        return (r % 2 == 0 ? 1.0F : -1.0F) * (1 + static_cast<float>(i % 128) / 128);
      };
      const auto me = static_cast<std::size_t>(group.rank());
      for (const std::size_t count : {std::size_t{128}, std::size_t{9000}}) {
        std::vector<std::uint16_t> mine(n * count), all, part(count), root(n * count);
        const auto want = [&](std::size_t i) {
          float sum = 0;
          for (std::size_t r = 0; r < n; ++r) {
            sum += static_cast<float>(factor_of(r)) * value(r, i);
          }
          return worker_sdk::f32_to_bf16(sum);
        };
        for (std::size_t i = 0; i < mine.size(); ++i) {
          mine[i] = worker_sdk::f32_to_bf16(value(me, i));
        }
        all = mine;
        const Buffer given{mine.data(), mine.size(), DataType::bf16};
        const CallOptions options{.factor = factor_of(me)};
        group.all_reduce({all.data(), all.size(), DataType::bf16}, ReduceOp::premul_sum, options);
        group.reduce_scatter(given, {part.data(), count, DataType::bf16}, ReduceOp::premul_sum,
                             options);
        group.reduce(given, {root.data(), root.size(), DataType::bf16}, 0, ReduceOp::premul_sum,
                     options);
        for (std::size_t i = 0; i < all.size(); ++i) {
          if (all[i] != want(i)) complaints.add("all_reduce");
          if (me == 0 && root[i] != want(i)) complaints.add("reduce");
          if (i < count && part[i] != want(me * count + i)) complaints.add("reduce_scatter");
        }
      }
    });
    INFO(world.name());
    CHECK(test::outcome(errors) == "all well");
    CHECK(complaints.text() == "");
  }
}

TEST_CASE(
    "Collectives: large sums of the widest elements are right on as many hosts as leave an uneven "
    "rest",
    "[collectives]") {
  constexpr std::size_t kWindow =
      (4 << 20) / sizeof(std::complex<double>);  // gloo_backend.cc
  const World world{"gloo", std::vector<std::string>(18, "a")};
  FirstComplaint complaints;
  const auto errors = world.ranks().run([&](ProcessGroup& group) {
    std::vector<std::complex<double>> values(kWindow);
    for (std::size_t i = 0; i < kWindow; ++i)
      values[i] = {static_cast<double>(i), static_cast<double>(group.rank())};
    group.all_reduce(buffer(values.data(), kWindow));
    for (std::size_t i = 0; i < kWindow; ++i) {
      if (values[i] == std::complex<double>(18.0 * static_cast<double>(i), 17.0 * 18 / 2)) continue;
      complaints.add("rank " + std::to_string(group.rank()) + ", element " + std::to_string(i));
    }
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK(complaints.text() == "");
}
#endif

}  // namespace
}  // namespace ddprun
