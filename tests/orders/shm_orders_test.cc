// What the ranks of a host do in shared memory, on memory as weakly ordered as C++ allows: the
// product's own files, in every execution that two ranks can have, or in many thousands of them.
// docs/shm.md lists which store is released to which load; this test is how that is known.

#include <sched.h>
#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>

#include "tests/orders/explorer.h"
#include "worker_sdk/shm/shm_backend.h"
#include "worker_sdk/shm/shm_team.h"

// The CPUs of a rank cannot be known here, so it does not spin: how often would depend on the
// clock.
extern "C" int __wrap_sched_getaffinity(int, std::size_t, cpu_set_t*) { return -1; }

namespace ddprun::worker_sdk {
namespace {

using orders::Bounds;
using orders::expect;
using orders::explore;
using orders::Program;
using orders::watch;
using namespace std::chrono_literals;

struct Counted {
  SharedCounter counter;
  int plain[2];
};

Counted counted;

Program counting(std::vector<std::function<void()>> threads) {
  return {.before =
              [] {
                std::memset(static_cast<void*>(&counted), 0, sizeof counted);
                watch(&counted, sizeof counted);
              },
          .threads = std::move(threads)};
}

void write_and_publish(std::uint32_t value) {
  counted.plain[value - 1] = static_cast<int>(value) * 7;
  publish(counted.counter, value);
}

void sleep_and_read(std::uint32_t target) {
  while (!sleep_until_reached(counted.counter, target, 1h)) {
  }
  for (std::uint32_t i = 0; i < target; ++i) {
    expect(counted.plain[i] == static_cast<int>(i + 1) * 7, "a value that was not published");
  }
}

const auto kOne = [] { write_and_publish(1); };
const auto kTwo = [] { write_and_publish(1), write_and_publish(2); };

TEST_CASE("Orders: who sleeps until a counter is reached is woken, and finds what was written") {
  CHECK_THAT(explore(counting({kOne, [] { sleep_and_read(1); }})).text(),
             Catch::StartsWith("all well in all"));
  CHECK_THAT(explore(counting({kTwo, [] { sleep_and_read(2); }})).text(),
             Catch::StartsWith("all well in all"));
  CHECK_THAT(explore(counting({kOne, [] { sleep_and_read(1); }, [] { sleep_and_read(1); }})).text(),
             Catch::StartsWith("all well in all"));
}

TEST_CASE("Orders: who spins until a counter is reached finds what was written") {
  const auto spins = [](auto until_reached) {
    return [=] {
      if (until_reached(counted.counter, 1, 1ns)) expect(counted.plain[0] == 7, "not published");
    };
  };
  CHECK_THAT(explore(counting({kOne, spins(spin_until_reached)})).text(),
             Catch::StartsWith("all well in all"));
  CHECK_THAT(explore(counting({kOne, spins(yield_until_reached)})).text(),
             Catch::StartsWith("all well in all"));
}

// Ranks of one host and the segment that they share, made anew for each execution.
class Host {
 public:
  explicit Host(int ranks) : ranks_(ranks), layout_(ranks) {}

  using Body = std::function<void(ShmBackend&, int rank)>;
  Program program(const Body& body) {
    Program program{.before = [this] { begin(); }};
    for (int r = 0; r < ranks_; ++r) {
      program.threads.push_back(
          [this, r, body] { body(*backends_[static_cast<std::size_t>(r)], r); });
    }
    return program;
  }
  // The rank's group is gone, its memory with it.
  void leave(int rank) { backends_[static_cast<std::size_t>(rank)].reset(); }

 private:
  // All but the words on the CPUs, which are only read for a guess.
  void begin() {
    const std::size_t bytes = layout_.total();
    backends_.clear();
    void* memory =
        ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    expect(memory != MAP_FAILED, "no memory");
    const auto segment = std::make_shared<Segment>(memory, bytes);
    watch(segment->data(), layout_.cpus(0));
    watch(segment->data() + layout_.posting(0, 0), bytes - layout_.posting(0, 0));
    std::vector<int> members(static_cast<std::size_t>(ranks_));
    std::iota(members.begin(), members.end(), 0);
    for (int r = 0; r < ranks_; ++r) {
      auto roster = std::make_shared<Roster>();
      roster->rank = r;
      roster->hosts.assign(members.size(), "here");
      auto team = std::make_unique<ShmTeam>(roster, members, segment,
                                            std::vector<UniqueFd>(members.size()));
      backends_.push_back(std::make_unique<ShmBackend>(std::move(team), nullptr));
    }
  }

  const int ranks_;
  const ShmLayout layout_;
  std::vector<std::unique_ptr<ShmBackend>> backends_;
};

Call call(Signature what, std::uint64_t number) {
  static const auto now = Clock::now();  // The same in all executions.
  return {.what = what, .number = number, .start = now, .deadline = now + 24h};
}

void barrier(ShmBackend& backend, std::uint64_t number) {
  backend.carry_out(call({.kind = OpKind::kBarrier}, number), {});
}

// Arrays of one element, `start` + rank before and the sum over ranks after.
void all_reduce(ShmBackend& backend, int rank, int ranks, std::uint64_t number) {
  std::int32_t value = static_cast<std::int32_t>(number) * 10 + rank;
  const Buffer inout{&value, 1, DataType::i32};
  const Signature what{
      .kind = OpKind::kAllReduce, .type = inout.type, .op = ReduceOp::sum, .count = 1};
  backend.carry_out(call(what, number), {inout, inout});
  const int want = static_cast<int>(number) * 10 * ranks + ranks * (ranks - 1) / 2;
  expect(value == want, "a sum of " + std::to_string(value));
}

// As many times as `calls`, one after the other.
Host::Body times(std::uint64_t calls, std::function<void(ShmBackend&, int, std::uint64_t)> what) {
  return [=](ShmBackend& backend, int rank) {
    for (std::uint64_t i = 1; i <= calls; ++i) what(backend, rank, i);
  };
}

std::string all_of(int ranks, const Host::Body& body, bool times_out = false) {
  Host host(ranks);
  Program program = host.program(body);
  program.times_out = times_out;
  const orders::Outcome outcome = explore(program);
  return outcome.all ? "all well" : outcome.text();
}

std::string many_of(int ranks, long executions, const Host::Body& body) {
  Host host(ranks);
  const orders::Outcome outcome =
      explore(host.program(body), {.executions = executions, .seed = 1});
  return outcome.failure.empty() ? "all well" : outcome.text();
}

TEST_CASE("Orders: ranks that meet find each other's postings") {
  const auto meet = [](ShmBackend& backend, int, std::uint64_t number) {
    barrier(backend, number);
  };
  CHECK(all_of(2, times(2, meet)) == "all well");
  CHECK(many_of(3, 5'000, times(4, meet)) == "all well");
}

TEST_CASE("Orders: small arrays are whole when their sum is made") {
  const auto reduce = [](ShmBackend& backend, int rank, std::uint64_t number) {
    all_reduce(backend, rank, backend.team().size(), number);
  };
  CHECK(all_of(2, times(2, reduce)) == "all well");
  CHECK(many_of(3, 5'000, times(4, reduce)) == "all well");
}

void broadcast(ShmBackend& backend, int rank, std::size_t count) {
  std::vector<std::int32_t> values(count, rank == 0 ? 7 : 0);
  const Buffer inout{values.data(), count, DataType::i32};
  const Signature what{.kind = OpKind::kBroadcast, .type = inout.type, .rank = 0, .count = count};
  backend.carry_out(call(what, 1), {inout, inout});
  expect(values.front() == 7 && values.back() == 7, "what the root did not send");
}

TEST_CASE("Orders: chunks are whole though two of them take turns in one place") {
  CHECK(many_of(2, 300, [](ShmBackend& backend, int rank) {
          broadcast(backend, rank, 5 * kChunkBytes / 4);
        }) == "all well");
}

void reduce_staged(ShmBackend& backend, int rank, std::size_t count) {
  std::vector<std::int32_t> values(count, rank + 1);
  const Buffer inout{values.data(), count, DataType::i32};
  const Signature what{
      .kind = OpKind::kAllReduce, .type = inout.type, .op = ReduceOp::sum, .count = count};
  backend.carry_out(call(what, 1), {inout, inout});
  for (const std::int32_t value : values) expect(value == 3, "a sum of " + std::to_string(value));
}

TEST_CASE("Orders: staged sums are whole, and nobody's staging is written while it is read") {
  const auto sum = [](std::size_t count) {
    return [count](ShmBackend& backend, int rank) { reduce_staged(backend, rank, count); };
  };
  CHECK(many_of(2, 500, sum(kSmallBytes / 4 + 1)) == "all well");
  CHECK(many_of(2, 20, sum(3 * kChunkBytes / 4)) == "all well");
}

void send_or_receive(ShmBackend& backend, int rank, std::uint64_t number) {
  std::int32_t value = rank == 0 ? static_cast<std::int32_t>(number) : 0;
  const Buffer buffer{&value, 1, DataType::i32};
  const OpKind kind = rank == 0 ? OpKind::kSend : OpKind::kRecv;
  backend.carry_out(call({.kind = kind, .type = buffer.type, .rank = 1 - rank, .count = 1}, number),
                    {buffer, buffer});
  expect(value == static_cast<int>(number), "another message");
}

TEST_CASE("Orders: messages are whole, though the third has the place of the first") {
  CHECK(all_of(2, times(2, send_or_receive)) == "all well");
  CHECK(many_of(2, 5'000, times(4, send_or_receive)) == "all well");
}

// What a call has thrown.
std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.what();
  }
  return "nothing";
}

void expect_error(const std::string& part, const std::function<void()>& call) {
  const std::string error = error_of(call);
  expect(error.find(part) != std::string::npos, error);
}

TEST_CASE("Orders: a rank that has done its part and left is not blamed") {
  Host host(2);
  Program program = host.program([&](ShmBackend& backend, int rank) {
    barrier(backend, 1);
    if (rank == 0) host.leave(0);
  });
  program.times_out = true;
  CHECK_THAT(explore(program).text(), Catch::StartsWith("all well in all"));
}

TEST_CASE("Orders: a rank that leaves before its part is found out") {
  Host host(2);
  Program program = host.program([&](ShmBackend& backend, int rank) {
    if (rank == 0) return host.leave(0);
    expect_error("rank 0 on here has left the job", [&] { barrier(backend, 1); });
  });
  program.times_out = true;
  CHECK_THAT(explore(program).text(), Catch::StartsWith("all well in all"));
}

TEST_CASE("Orders: ranks that call different things all see that, whoever gives up first") {
  CHECK(all_of(
            2,
            [](ShmBackend& backend, int rank) {
              expect_error(" where rank 0 on here called barrier #1",
                           [&] { rank == 0 ? barrier(backend, 1) : all_reduce(backend, 1, 2, 1); });
            },
            true) == "all well");
}

}  // namespace
}  // namespace ddprun::worker_sdk
