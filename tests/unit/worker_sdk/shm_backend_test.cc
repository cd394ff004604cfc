// Shared memory without processes: all ranks of a test share one mapping, so that ThreadSanitizer
// sees every access of every rank at the same address and can judge the synchronisation itself.

#include "worker_sdk/shm/shm_backend.h"
#include "common/system/child_process.h"

#include <sched.h>
#include <signal.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <latch>
#include <map>
#include <mutex>
#include <numeric>
#include <optional>
#include <thread>

#include "tests/support/elements.h"
#include "worker_sdk/shm/shm_team.h"

namespace ddprun::worker_sdk {
namespace {

using namespace std::chrono_literals;

// Hands the very same mapping to every opener of a segment.
class OneMapping : public SegmentSource {
 public:
  OfferedSegment create(std::size_t bytes) override {
    OfferedSegment offered = memfds_.create(bytes);
    const std::lock_guard lock(mutex_);
    segments_[offered.name.inode] = offered.segment;
    return offered;
  }
  std::shared_ptr<Segment> open(const SegmentName& name) override {
    const std::lock_guard lock(mutex_);
    return segments_.at(name.inode);
  }

 private:
  MemfdSource memfds_;
  std::mutex mutex_;
  std::map<std::uint64_t, std::shared_ptr<Segment>> segments_;
};

struct Rank {
  ShmBackend& backend;
  int rank;
  int size;
  std::uint64_t calls = 0;

  Call call(Signature what) {
    const auto now = Clock::now();
    return {.what = what, .number = ++calls, .start = now, .deadline = now + 60s};
  }
  void all_reduce(DataType type, ReduceOp op, void* data, std::size_t count) {
    const Buffer inout{data, count, type};
    backend.carry_out(call({.kind = OpKind::kAllReduce, .type = type, .op = op, .count = count}),
                      {inout, inout});
  }
};

using Before = std::function<void(int rank)>;  // The rank joins.

// Runs `body` on each of `n` threads; returns the first complaint.
std::string on_one_mapping(
    int n, const std::function<std::string(Rank&)>& body, const Before& before = [](int) {}) {
  auto segments = std::make_shared<OneMapping>();
  OfferedSegment control = segments->create(ShmTeam::control_bytes(n));
  std::mutex mutex;
  std::string first = "all well";
  std::vector<std::thread> threads;
  for (int r = 0; r < n; ++r) {
    threads.emplace_back([&, r] {
      before(r);
      auto roster = std::make_shared<Roster>();
      roster->rank = r;
      roster->hosts.assign(static_cast<std::size_t>(n), "here");
      std::vector<int> members(static_cast<std::size_t>(n));
      std::iota(members.begin(), members.end(), 0);
      ShmBackend backend(
          std::make_unique<ShmTeam>(roster, members, control.segment,
                                    std::vector<UniqueFd>(static_cast<std::size_t>(n))),
          segments);
      Rank rank{backend, r, n};
      std::string complaint;
      try {
        complaint = body(rank);
      } catch (const Error& error) {
        complaint = error.what();
      }
      const std::lock_guard lock(mutex);
      if (!complaint.empty() && first == "all well") first = complaint;
    });
  }
  for (auto& thread : threads) thread.join();
  return first;
}

// Sizes on both sides of each path's edges.
constexpr std::size_t kSizes[] = {1,
                                  kSmallBytes / 4,
                                  kSmallBytes / 4 + 1,
                                  kChunkBytes / 4,
                                  kChunkBytes / 4 + 1,
                                  3 * kChunkBytes / 4 + 17};

TEST_CASE("ShmBackend: small, staged and direct reductions follow each other without a race",
          "[shm]") {
  for (int n = 1; n <= 8; ++n) {
    const std::string outcome = on_one_mapping(n, [](Rank& rank) -> std::string {
      auto memory = rank.backend.allocate(
          rank.call({.kind = OpKind::kAllocate, .count = 4 * kSizes[5]}), 4 * kSizes[5]);
      for (int round = 0; round < 3; ++round) {
        for (const std::size_t count : kSizes) {
          auto staged = test::inputs(DataType::f32, rank.rank, count);
          const auto want = test::expected(DataType::f32, ReduceOp::sum, rank.size, count);
          std::memcpy(memory.get(), staged.data(), staged.size());
          rank.all_reduce(DataType::f32, ReduceOp::sum, staged.data(), count);
          if (staged != want) return "staged, " + std::to_string(count);
          rank.all_reduce(DataType::f32, ReduceOp::sum, memory.get(), count);
          if (std::memcmp(memory.get(), want.data(), want.size()) != 0) {
            return "direct, " + std::to_string(count);
          }
        }
      }
      return {};
    });
    CAPTURE(n);
    CHECK(outcome == "all well");
  }
}

TEST_CASE("ShmBackend: broadcasts, gathers, messages and barriers in turn without a race",
          "[shm]") {
  const std::string outcome = on_one_mapping(3, [](Rank& rank) -> std::string {
    for (const std::size_t count : kSizes) {
      const std::size_t bytes = 4 * count;
      for (int root = 0; root < rank.size; ++root) {
        auto array = test::inputs(DataType::f32, rank.rank, count);
        const Buffer inout{array.data(), count, DataType::f32};
        rank.backend.carry_out(
            rank.call(
                {.kind = OpKind::kBroadcast, .type = DataType::f32, .rank = root, .count = count}),
            {inout, inout});
        if (array != test::inputs(DataType::f32, root, count)) return "broadcast";
      }
      auto in = test::inputs(DataType::f32, rank.rank, count);
      std::vector<std::byte> out(bytes * static_cast<std::size_t>(rank.size));
      const Buffer mine{in.data(), count, DataType::f32};
      rank.backend.carry_out(
          rank.call({.kind = OpKind::kAllGather, .type = DataType::f32, .count = count}),
          {mine, {out.data(), count * static_cast<std::size_t>(rank.size), DataType::f32}});
      const auto last = test::inputs(DataType::f32, rank.size - 1, count);
      if (std::memcmp(out.data() + out.size() - bytes, last.data(), bytes) != 0)
        return "all_gather";
      rank.backend.carry_out(rank.call({.kind = OpKind::kBarrier}), {});
      // Numbers of messages do not matter to others.
      const Call message{.what = {.kind = rank.rank == 0 ? OpKind::kSend : OpKind::kRecv,
                                  .type = DataType::f32,
                                  .rank = 1 - rank.rank,
                                  .count = count},
                         .number = 1,
                         .start = Clock::now(),
                         .deadline = Clock::now() + 60s};
      if (rank.rank == 0) rank.backend.carry_out(message, {.in = mine});
      if (rank.rank == 1) {
        rank.backend.carry_out(message, {.out = mine});
        if (in != test::inputs(DataType::f32, 0, count)) return "recv";
      }
    }
    return {};
  });
  CHECK(outcome == "all well");
}

// Each rank's part of an array, all alike, so that the result is easy to check.
std::string parts_in_turn(Rank& rank, void* shared) {
  const auto n = static_cast<std::size_t>(rank.size);
  for (const std::size_t count : kSizes) {
    std::vector<float> own(n * count), part(count);
    for (float* whole : {own.data(), static_cast<float*>(shared)}) {
      const Buffer all{whole, n * count, DataType::f32}, one{part.data(), count, DataType::f32};
      const auto call = [&](OpKind kind, int root = -1) {
        return rank.call({.kind = kind, .type = DataType::f32, .rank = root, .count = count});
      };
      const auto is = [&](std::size_t i, float want) { return whole[i] == want; };
      std::fill(whole, whole + n * count, static_cast<float>(rank.rank));
      rank.backend.carry_out(call(OpKind::kAllToAll), {all, all});
      if (!is(0, 0) || !is(n * count - 1, static_cast<float>(n - 1))) return "all_to_all";
      rank.backend.carry_out(call(OpKind::kReduceScatter), {all, one});
      const auto sum = static_cast<float>(n * static_cast<std::size_t>(rank.rank));
      if (part[count - 1] != sum) return "reduce_scatter";
      rank.backend.carry_out(call(OpKind::kGather, 0), {one, all});
      if (rank.rank == 0 && !is(n * count - 1, static_cast<float>(n * (n - 1)))) return "gather";
      rank.backend.carry_out(call(OpKind::kScatter, 0), {all, one});
      if (part[0] != sum) return "scatter";
      rank.backend.carry_out(call(OpKind::kAllGather), {one, all});
      if (!is(n * count - 1, static_cast<float>(n * (n - 1)))) return "all_gather";
      // As cpu_backend does, with fewer owners than ranks.
      const int owners = (rank.size + 1) / 2;
      const Call reduce = call(OpKind::kAllReduce);
      rank.backend.reduce_to_owners(reduce, all, owners, ReduceOp::max, 0);
      rank.backend.gather_from_owners(reduce, all, owners);
      if (!is(n * count - 1, static_cast<float>(n * (n - 1)))) return "owners";
    }
  }
  return {};
}

TEST_CASE("ShmBackend: what has a part for each rank, in turn without a race", "[shm]") {
  for (int n = 1; n <= 8; ++n) {
    const std::string outcome = on_one_mapping(n, [](Rank& rank) -> std::string {
      const std::size_t bytes = 4 * kSizes[5] * static_cast<std::size_t>(rank.size);
      auto memory =
          rank.backend.allocate(rank.call({.kind = OpKind::kAllocate, .count = bytes}), bytes);
      return parts_in_turn(rank, memory.get());
    });
    CAPTURE(n);
    CHECK(outcome == "all well");
  }
}

TEST_CASE("ShmBackend: arrays at different places of one allocation are staged", "[shm]") {
  const std::string outcome = on_one_mapping(2, [](Rank& rank) -> std::string {
    constexpr std::size_t kCount = 20000;
    auto memory = rank.backend.allocate(rank.call({.kind = OpKind::kAllocate, .count = 8 * kCount}),
                                        8 * kCount);
    auto* at = static_cast<std::byte*>(memory.get()) + (rank.rank == 0 ? 0 : 4096);
    const auto in = test::inputs(DataType::f32, rank.rank, kCount);
    std::memcpy(at, in.data(), in.size());
    rank.all_reduce(DataType::f32, ReduceOp::sum, at, kCount);
    const auto want = test::expected(DataType::f32, ReduceOp::sum, 2, kCount);
    return std::memcmp(at, want.data(), want.size()) == 0 ? "" : "wrong";
  });
  CHECK(outcome == "all well");
}

// Rank 2 does not come, and rank 0 has less patience than rank 1.
std::string barrier_without_the_third(Rank& rank, std::latch& failed) {
  std::string outcome;
  Call call = rank.call({.kind = OpKind::kBarrier});
  if (rank.rank == 0) call.deadline = call.start + 50ms;
  try {
    if (rank.rank < 2) rank.backend.carry_out(call, {});
  } catch (const Error& error) {
    outcome = error.text();
  }
  if (rank.rank < 2) failed.count_down();
  failed.wait();  // No rank leaves before.
  return rank.rank == 1 ? outcome : "";
}

TEST_CASE("ShmBackend: a rank whose call has failed lets its peers know", "[shm]") {
  std::latch failed(2);
  const std::string outcome =
      on_one_mapping(3, [&](Rank& rank) { return barrier_without_the_third(rank, failed); });
  CHECK(outcome == "rank 0 on here has given up because of rank 2 on here");
}

TEST_CASE("ShmBackend: the parts of the control segment do not overlap", "[shm]") {
  for (const int n : {1, 2, 3, 64, kShmRanksMax}) {
    const ShmLayout at(n);
    std::map<std::size_t, std::size_t> parts;  // Begin and end.
    for (int r = 0; r < n; ++r) {
      parts[at.line(r)] = at.line(r) + sizeof(ShmLine);
      parts[at.cpus(r)] = at.cpus(r) + sizeof(ShmCpus);
      for (unsigned parity = 0; parity < 2; ++parity) {
        parts[at.posting(parity, r)] = at.posting(parity, r) + sizeof(PostingSlot);
        parts[at.small(parity, r)] = at.small(parity, r) + kSmallBytes;
        parts[at.staging(parity, r)] = at.staging(parity, r) + kChunkBytes;
        parts[at.result(parity)] = at.result(parity) + kChunkBytes;
        for (int to = 0; to < n; ++to) {
          parts[at.parcel(r, to, parity)] = at.parcel(r, to, parity) + kParcelBytes;
        }
      }
      for (int to = 0; to < n; ++to) {
        parts[at.mailbox(r, to)] = at.mailbox(r, to) + sizeof(Mailbox);
      }
    }
    const auto ranks = static_cast<std::size_t>(n);
    CHECK(parts.size() == 2 * ranks + 2 * (3 * ranks + 1) + 3 * ranks * ranks);
    std::size_t end = 0;
    for (const auto& [begin, next] : parts) {
      if (begin < end) FAIL(n << " ranks: " << begin);
      end = next;
    }
    CHECK(end <= at.total());
  }
}

TEST_CASE("ShmSync: a counter wakes those who sleep on it, across the wrap-around", "[shm]") {
  SharedCounter counter{};
  counter.value.store(0xfffffffe);
  CHECK(has_reached(0, 0xffffffff));
  CHECK_FALSE(has_reached(0xffffffff, 0));
  CHECK_FALSE(sleep_until_reached(counter, 0xffffffff, 1ms));
  CHECK_FALSE(spin_until_reached(counter, 0xffffffff, 10us));
  CHECK_FALSE(yield_until_reached(counter, 0xffffffff, 10us));
  std::thread publisher([&] {
    while (counter.sleepers.load() == 0) std::this_thread::yield();
    publish(counter, 1);
  });
  bool reached = false;
  while (!reached) reached = sleep_until_reached(counter, 1, 60s);
  publisher.join();
  CHECK(spin_until_reached(counter, 0, 0ns));
  CHECK(yield_until_reached(counter, 0, 0ns));
}

TEST_CASE("ShmSync: spins that end in a sleep become shorter, until one pays again", "[shm]") {
  SpinBudget budget(64us);
  CHECK(budget.limit() == 64us);
  budget.failed();
  budget.failed();
  CHECK(budget.limit() == 16us);
  for (int i = 2; i < 31; ++i) budget.failed();
  CHECK(budget.limit() == 500ns);
  budget.failed();
  CHECK(budget.limit() == 64us);  // A trial.
  budget.failed();
  CHECK(budget.limit() == 500ns);
  budget.worked();
  CHECK(budget.limit() == 64us);
  CHECK(SpinBudget(0ns).limit() == 0ns);
}

TEST_CASE("ShmTeam: ranks spin while they wait if together they may use as many CPUs as they are",
          "[shm]") {
  std::vector<int> cpus;
  cpu_set_t set;
  REQUIRE(::sched_getaffinity(0, sizeof(set), &set) == 0);
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &set)) cpus.push_back(cpu);
  }
  const auto spinning = [&](int n, const Before& bind) {
    return on_one_mapping(
        n,
        [](Rank& rank) {
          rank.backend.carry_out(rank.call({.kind = OpKind::kBarrier}), {});
          return std::string(rank.backend.team().spins() ? "spins" : "sleeps");
        },
        bind);
  };
  const auto bind_to = [&](std::size_t i) {
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpus.at(i), &one);
    ::sched_setaffinity(0, sizeof(one), &one);
  };
  const auto many = static_cast<int>(cpus.size());
  CHECK(spinning(many + 1, [](int) {}) == "sleeps");
  CHECK(spinning(2, [&](int) { bind_to(0); }) == "sleeps");
  if (many < 2) return;
  CHECK(spinning(2, [](int) {}) == "spins");
  CHECK(spinning(2, [&](int rank) { bind_to(static_cast<std::size_t>(rank)); }) == "spins");
}

// What rank 1 takes for the process of rank 0, which may end as rank 1 opens what rank 0 offers.
class Neighbour : public SegmentSource {
 public:
  Neighbour() : pid_(::fork()) {
    if (pid_ == 0) {
      for (;;) ::pause();
    }
  }
  ~Neighbour() override { end(); }
  UniqueFd pidfd() const { return open_pidfd(pid_); }
  pid_t pid() const { return pid_; }

  bool ends = true;
  OfferedSegment create(std::size_t bytes) override { return memfds_.create(bytes); }
  std::shared_ptr<Segment> open(const SegmentName&) override {
    if (ends) end();
    throw std::system_error(ENOENT, std::generic_category(), "opening");
  }

 private:
  void end() {
    if (pid_ < 0) return;
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  pid_t pid_;
  MemfdSource memfds_;
};

// What rank 1 gets, if rank 0 has offered memory that rank 1 cannot open.
ErrorKind error_of_opening(bool rank_0_ends) {
  auto neighbour = std::make_shared<Neighbour>();
  neighbour->ends = rank_0_ends;
  auto control = neighbour->create(ShmTeam::control_bytes(2));
  std::optional<ErrorKind> found;
  std::vector<std::thread> threads;
  for (int r = 0; r < 2; ++r) {
    std::vector<UniqueFd> pidfds(2);
    if (r == 1) pidfds[0] = neighbour->pidfd();
    threads.emplace_back([&, r, watched = std::move(pidfds)]() mutable {
      auto roster = std::make_shared<Roster>();
      roster->rank = r;
      roster->hosts.assign(2, "here");
      ShmBackend backend(std::make_unique<ShmTeam>(roster, std::vector<int>{0, 1}, control.segment,
                                                   std::move(watched)),
                         neighbour);
      Rank rank{backend, r, 2};
      try {
        (void)backend.allocate(rank.call({.kind = OpKind::kAllocate, .count = 64}), 64);
      } catch (const Error& error) {
        if (r == 1) found = error.kind();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  return found.value_or(ErrorKind::bad_argument);
}

pid_t ends_at_alarm = -1;

TEST_CASE("ShmBackend: a signal does not end the wait for the end of a rank", "[shm]") {
  const auto neighbour = std::make_shared<Neighbour>();
  ends_at_alarm = neighbour->pid();
  struct sigaction ends {};
  ends.sa_handler = [](int) { ::kill(ends_at_alarm, SIGKILL); };  // Interrupts poll().
  struct sigaction before {};
  ::sigaction(SIGALRM, &ends, &before);
  auto roster = std::make_shared<Roster>();
  roster->rank = 1;
  roster->hosts.assign(2, "here");
  auto control = neighbour->create(ShmTeam::control_bytes(2));
  std::vector<UniqueFd> pidfds(2);
  pidfds[0] = neighbour->pidfd();
  const ShmTeam team(roster, {0, 1}, control.segment, std::move(pidfds));
  const itimerval soon{.it_interval = {}, .it_value = {.tv_sec = 0, .tv_usec = 50'000}};
  ::setitimer(ITIMER_REAL, &soon, nullptr);
  CHECK(team.ends(0, 50s));
  ::sigaction(SIGALRM, &before, nullptr);
}

TEST_CASE("ShmBackend: memory that goes with the rank that offers it is a lost peer", "[shm]") {
  CHECK(error_of_opening(true) == ErrorKind::peer_lost);
  CHECK(error_of_opening(false) == ErrorKind::system);
}

TEST_CASE("ShmSegment: a segment that is not the one it was is refused", "[shm]") {
  MemfdSource source;
  OfferedSegment offered = source.create(10000);
  offered.segment->data()[9999] = std::byte(7);
  CHECK(source.open(offered.name)->data()[9999] == std::byte(7));
  SegmentName other = offered.name;
  other.inode += 1;
  CHECK_THROWS_AS(source.open(other), std::system_error);
  other = offered.name;
  other.bytes += 1;
  CHECK_THROWS_AS(source.open(other), std::system_error);
  offered.fd.reset();
  CHECK_THROWS_AS(source.open(offered.name), std::system_error);
}

}  // namespace
}  // namespace ddprun::worker_sdk
