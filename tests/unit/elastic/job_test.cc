// A job without a launcher, and one with a single rank that has the test for its agent.

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/time.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <numeric>
#include <optional>
#include <thread>

#include "ddprun/elastic/job.h"
#include "tests/support/ranks.h"
#include "tests/support/stderr_of.h"
#include "worker_sdk/job/kept_state.h"
#include "worker_sdk/store/store_host.h"
#include "worker_sdk/worker/agent_link.h"

namespace ddprun::elastic {
namespace {

using Catch::Contains;
using test::stderr_of;
using namespace worker_link;

const auto kNothing = [](Step& step) { step.commit(); };

TEST_CASE("Job: alone it runs each step once, and visits boundaries") {
  Job job;
  std::vector<std::int64_t> steps, visits;
  job.between(2, [&](ProcessGroup& group) {
    CHECK(group.world_size() == 1);
    visits.push_back(job.committed());
  });
  job.run(5, [&](Step& step) {
    CHECK(step.shards(3).size() == 3);
    CHECK(step.vote() == 0);
    step.commit([&] { steps.push_back(step.number()); });
  });
  CHECK(steps == std::vector<std::int64_t>{0, 1, 2, 3, 4});
  CHECK(visits == std::vector<std::int64_t>{2, 4});
  job.run(6, kNothing);
  CHECK(visits == std::vector<std::int64_t>{2, 4, 6});
  CHECK(job.committed() == 6);
}

TEST_CASE("Job: a program that has loaded a checkpoint goes on from its step") {
  Job job;
  std::vector<std::int64_t> steps;
  int visits = 0;
  job.between(2, [&](ProcessGroup&) { ++visits; });
  job.resume(4);
  job.run(5, [&](Step& step) { step.commit([&] { steps.push_back(step.number()); }); });
  CHECK(steps == std::vector<std::int64_t>{4});
  CHECK(visits == 0);
  CHECK_THROWS_WITH(job.resume(1), Contains("before run()"));
}

TEST_CASE("Job: what it is used for wrongly is named") {
  Job job;
  CHECK_THROWS_WITH(job.run(1, [](Step&) {}), Contains("without commit() of step 0"));
  CHECK_THROWS_WITH(job.run(1,
                            [](Step& step) {
                              step.commit();
                              step.commit();
                            }),
                    Contains("committed already"));
  CHECK(job.committed() == 1);
  CHECK_THROWS_WITH(job.run(2, [&](Step&) { job.resume(7); }), Contains("has not returned"));
  CHECK_THROWS_WITH(job.run(2, nullptr), Contains("no body"));
  CHECK_THROWS_WITH(job.run(-1, kNothing), Contains("the number of steps is -1"));
  CHECK_THROWS_WITH(job.between(0, [](ProcessGroup&) {}), Contains("positive number"));
  float value = 0;
  job.keep("weights", buffer(&value, 1));
  CHECK_THROWS_WITH(job.keep("weights", buffer(&value, 1)), Contains("kept already"));
  CHECK_THROWS_WITH(job.keep("other", Buffer{nullptr, 2}), Contains("no memory"));
  CHECK_THROWS_WITH(job.keep("other", nullptr, nullptr), Contains("two functions"));
  JobOptions options;
  options.init.op_timeout = std::chrono::milliseconds(0);
  CHECK_THROWS_WITH(Job(options), Contains("must be positive"));
  CHECK_THROWS_WITH(Job({.check_every = -1}), Contains("check_every must not be negative"));
}

TEST_CASE("Job: who has its rank and the number of ranks, also between runs") {
  Job job;
  CHECK(job.rank() == -1);
  CHECK(job.world_size() == 0);
  job.run(0, kNothing);
  CHECK(job.rank() == 0);
  CHECK(job.world_size() == 1);
}

TEST_CASE("Job: a checkpoint of more steps than run() is for is named") {
  Job job;
  job.resume(1000);
  const std::string text = stderr_of([&] { job.run(6, kNothing); });
  CHECK_THAT(text, Contains("Job::run(6) runs no step") && Contains("of 1000 committed steps"));
  CHECK(stderr_of([&] { job.run(1000, kNothing); }) == "");  // As a run that had ended.
  job.run(1001, kNothing);
  CHECK(stderr_of([&] { job.run(6, kNothing); }) == "");  // An earlier one of several.
}

void expect_bad_argument(const std::function<void()>& call, const std::string& text) {
  try {
    call();
    FAIL("nothing was thrown: " << text);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::bad_argument);
    CHECK_THAT(error.what(), Contains(text));
  }
}

TEST_CASE("Job: what commit() calls commits nothing and communicates with nobody") {
  Job job;
  Sharded& momenta = job.keep_sharded("momenta", {.count = 8, .shards = 2});
  int bodies = 0;
  float number = 1;
  const Buffer one = buffer(&number, 1);
  job.run(3, [&](Step& step) {
    ++bodies;
    auto part = step.group().split(0, 0);
    step.commit([&] {
      expect_bad_argument([&] { step.commit(); }, "one step has one commit()");
      expect_bad_argument([&] { step.group().barrier(); }, "communicates with nobody");
      expect_bad_argument([&] { (void)step.group().all_reduce_async(one); },
                          "communicates with nobody");
      expect_bad_argument([&] { part->all_reduce(one); }, "communicates with nobody");
      expect_bad_argument([&] { (void)step.group().split(0, 0); }, "communicates with nobody");
      expect_bad_argument([&] { momenta.next(); }, "the copy on another rank has been made");
    });
    step.group().barrier();
  });
  CHECK(bodies == 3);
  CHECK(job.committed() == 3);
  // An exception of the function leaves none of it behind.
  CHECK_THROWS_AS(job.run(4, [](Step& step) { step.commit([] { throw std::out_of_range(""); }); }),
                  std::out_of_range);
  const test::TemporaryDirectory directory;
  ProcessGroup::init(test::Ranks{.world_size = 1}.options(directory / "store", 0)).barrier();
}

TEST_CASE("Job: exceptions that have nothing to do with a round pass, and the step runs again") {
  Job job;
  CHECK_THROWS_AS(job.run(1, [](Step&) { throw std::out_of_range("mine"); }), std::out_of_range);
  job.run(1, [](Step& step) {
    CHECK(step.is_repeated());
    step.commit();
  });
}

TEST_CASE("Job: a step whose commit has failed half-way does not run again in the same round") {
  Job job;
  const auto half = [](Step& step) { step.commit([] { throw std::out_of_range("mine"); }); };
  CHECK_THROWS_AS(job.run(1, half), std::out_of_range);
  int calls = 0;
  CHECK_THROWS_WITH(job.run(1, [&](Step&) { ++calls; }),
                    Contains("the kept state is torn: commit() of step 0 has failed half-way"));
  CHECK(calls == 0);
}

JobOptions fixed(const test::Ranks& ranks, const std::string& store, int rank) {
  return {.init = ranks.options(store, rank)};
}

// Jobs of fixed ranks, as threads; what each threw.
std::vector<std::optional<Error>> run_ranks(const test::Ranks& ranks,
                                            const std::function<void(Job&, int rank)>& body,
                                            const JobOptions& chosen = {}) {
  const test::TemporaryDirectory directory;
  std::vector<std::optional<Error>> errors(static_cast<std::size_t>(ranks.world_size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks.world_size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        JobOptions options = chosen;
        options.init = ranks.options(directory / "store", rank);
        Job job(std::move(options));
        body(job, rank);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = error;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST_CASE("Job: fixed ranks begin with rank 0's state, whatever its size") {
  constexpr std::size_t kMany = 700'001;  // Of doubles: more than one piece.
  std::vector<std::vector<double>> weights(3);
  std::vector<std::string> texts(3);
  const auto errors = run_ranks({.world_size = 3}, [&](Job& job, int rank) {
    auto& mine = weights[static_cast<std::size_t>(rank)];
    auto& text = texts[static_cast<std::size_t>(rank)];
    mine.resize(kMany);
    std::iota(mine.begin(), mine.end(), 1000.0 * rank);
    text.assign(static_cast<std::size_t>(5 - rank), static_cast<char>('a' + rank));
    job.keep("weights", buffer(mine.data(), mine.size()));
    job.keep(
        "text", [&] { return text; }, [&](std::string_view other) { text = other; });
    job.keep("nothing", Buffer{});
    job.run(2, [&](Step& step) { step.commit([&] { mine[0] += 1; }); });
    const auto bytes = kMany * sizeof(double) + 5;
    const bool counted =
        rank == 0 ? job.counters().bytes_sent == bytes : job.counters().bytes_received == bytes;
    if (!counted) throw Error(ErrorKind::mismatch, {}, "bytes are counted wrongly");
  });
  CHECK(test::outcome(errors) == "all well");
  CHECK(weights[0][0] == 2);
  CHECK(weights[1] == weights[0]);
  CHECK(weights[2] == weights[0]);
  CHECK(texts == std::vector<std::string>(3, "aaaaa"));
}

TEST_CASE("Job: ranks that keep different state are told which rank differs") {
  const auto errors = run_ranks({.world_size = 2}, [](Job& job, int rank) {
    std::vector<float> values(static_cast<std::size_t>(3 + rank));
    job.keep("weights", buffer(values.data(), values.size()));
    try {
      job.run(1, kNothing);
    } catch (const Error&) {
      job.run(1, kNothing);  // Does not make it better.
    }
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(error->kind() == ErrorKind::mismatch);
    CHECK_THAT(error->what(), Contains("rank 1 keeps other state than rank 0"));
  }
}

// Steps of 24 shards on three ranks, which take so long for each of their shards, until `ends` or
// 400 are committed. Throws if a shard is computed other than once. Returns the shards of rank 1
// after each step.
struct ShardRun {
  std::vector<int> ms = {1, 1, 1};   // By rank.
  std::vector<double> weights = {};  // By rank, of each of its shards.
  std::function<bool(std::size_t mine)> ends = [](std::size_t) { return false; };
  int steps = 400;
};

std::vector<std::size_t> shards_of_rank_1(const ShardRun& run, const JobOptions& options = {}) {
  constexpr int kShards = 24;
  std::vector<std::size_t> story;
  const auto errors = run_ranks(
      {.world_size = 3},
      [&](Job& job, int rank) {
        const auto at = static_cast<std::size_t>(rank);
        GradientSums sums({kShards});
        bool is_used = false, is_over = false;
        while (!is_over && job.committed() < run.steps) {
          job.run(job.committed() + 1, [&](Step& step) {
            if (!std::exchange(is_used, true)) sums.use(step.group());
            GradientSums::Result result;
            std::vector<float> all(kShards);
            const std::vector<std::span<float>> out = {all};
            std::size_t count = 0;
            const std::int64_t ended =
                rank == 1 && !story.empty() && run.ends(story.back()) ? 1 : 0;
            do {
              sums.begin();
              const std::vector<double> weights(kShards, run.weights.empty() ? 1 : run.weights[at]);
              const auto mine = run.weights.empty() ? step.shards(kShards) : step.shards(weights);
              count = mine.size();
              std::vector<float> one(kShards);
              const std::vector<std::span<const float>> views = {one};
              const auto compute = [&](int shard) {
                ::poll(nullptr, 0, run.ms[at]);
                std::fill(one.begin(), one.end(), 0.0F);
                one[static_cast<std::size_t>(shard)] = 1;
                if (step.is_audited(shard)) step.audit(shard, sums.hash(views));
              };
              for (const int shard : mine) {
                compute(shard);
                sums.add(views);
              }
              for (const int shard : step.audits()) compute(shard);
              step.group().barrier();  // Where fast ranks wait.
              result =
                  step.reduce(sums, out, {.note = ended, .notes = std::vector<std::int64_t>{5}});
            } while (result.kind == GradientSums::Kind::over);
            if (all != std::vector<float>(kShards, 1) || result.notes[0] != 15) {
              throw Error(ErrorKind::corrupt, {}, "a shard was not computed once");
            }
            is_over = result.note != 0;
            step.commit([&] { sums.commit(); });
            if (rank == 1) story.push_back(count);
          });
        }
        if (rank == 1 && story.back() != story.front() && job.counters().moved_shards == 0) {
          throw Error(ErrorKind::corrupt, {}, "moves are counted wrongly");
        }
      },
      options);
  CHECK(test::outcome(errors) == "all well");
  return story;
}

TEST_CASE("Job: a slow rank gives shards to the others, one after a step, and all are computed") {
  const auto story =
      shards_of_rank_1({.ms = {2, 6, 2}, .ends = [](std::size_t mine) { return mine <= 4; }});
  CHECK(story.front() == 8);
  CHECK(story.back() <= 4);
  for (std::size_t i = 1; i < story.size(); ++i) CHECK(story[i - 1] <= story[i] + 4);
}

TEST_CASE("Job: a slow rank keeps its shards though it audits many of fast ones") {
  const auto story = shards_of_rank_1({.ms = {2, 6, 2}, .steps = 40}, {.audit = 100});
  CHECK(story.back() >= 2);  // 3, as without audits; 1 if audits counted as time of its own shards.
}

TEST_CASE("Job: shards stay even if that is chosen") {
  const auto story = shards_of_rank_1({.ms = {1, 4, 1}, .steps = 10}, {.even_shards = true});
  CHECK(story == std::vector<std::size_t>(story.size(), 8));
}

TEST_CASE("Job: a rank whose shards are long is not slow") {
  // Each rank takes as long for a shard, but rank 1's have more work in them.
  const auto story = shards_of_rank_1(
      {.ms = {2, 2, 2}, .weights = {1, 9, 1}, .ends = [](std::size_t mine) { return mine >= 16; }});
  CHECK(story.back() >= 16);
}

TEST_CASE("Job: ranks that divide a step differently are refused with the remedy") {
  const auto errors = run_ranks({.world_size = 3}, [](Job& job, int rank) {
    GradientSums sums({4});
    std::vector<float> all(4);
    const std::vector<std::span<float>> out = {all};
    job.run(1, [&](Step& step) {
      sums.use(step.group());
      do {
        sums.begin();
        (void)step.shards(rank == 2 ? 24 : 12);
      } while (step.reduce(sums, out).kind == GradientSums::Kind::over);
      step.commit();
    });
  });
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK(error->kind() == ErrorKind::mismatch);
    CHECK_THAT(error->what(), Contains("differently") && Contains("even_shards"));
  }
}

TEST_CASE("Job: ranks of which one divides evenly are refused") {
  const test::TemporaryDirectory directory;
  const test::Ranks ranks{.world_size = 2};
  std::vector<std::optional<Error>> errors(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        JobOptions options = fixed(ranks, directory / "store", rank);
        options.even_shards = rank == 1;
        Job job(std::move(options));
        job.run(1, kNothing);
      } catch (const Error& error) {
        errors[static_cast<std::size_t>(rank)] = error;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK_THAT(error->what(),
               Contains("check_every, even_shards, memory_every or audit of JobOptions"));
  }
}

TEST_CASE("Job: a group that is smaller than the job needs is refused") {
  const test::TemporaryDirectory directory;
  JobOptions options = fixed({.world_size = 1}, directory / "store", 0);
  options.min_world = 2;
  Job job(options);
  CHECK_THROWS_WITH(job.run(1, kNothing),
                    Contains("the job has 1 rank and needs at least 2 (min_world)"));
  options.min_world = -1;
  CHECK_THROWS_WITH(Job(options), Contains("min_world must not be negative"));
}

// Six steps of three ranks, one of which changes an array between two steps.
std::vector<std::optional<Error>> run_with_change(std::int64_t check_every) {
  return run_ranks(
      {.world_size = 3, .backend = "cpu", .hosts = {"a", "b", "c"}},
      [](Job& job, int rank) {
        std::vector<double> weights(700'001, 1), rest(3, 2);  // The first of several pieces.
        job.keep("weights", buffer(weights.data(), weights.size()));
        job.keep("nothing", Buffer{});
        job.keep("rest", buffer(rest.data(), rest.size()));
        job.keep(
            "of each its own", [rank] { return std::to_string(rank); }, [](std::string_view) {});
        job.between(2, [&](ProcessGroup&) {
          if (job.committed() == 4 && rank == 1) weights.back() += 1;
        });
        job.run(7, [&](Step& step) { step.commit([&] { rest[0] += weights[0]; }); });
      },
      {.check_every = check_every});
}

TEST_CASE("Job: ranks that have changed what they keep on their own are named, if they are to be") {
  CHECK(test::outcome(run_with_change(0)) == "all well");
  for (const auto& error : run_with_change(3)) {
    REQUIRE(error);
    CHECK(error->kind() == ErrorKind::mismatch);
    CHECK(error->where().peer == 1);
    CHECK_THAT(error->what(), Contains("after step 6 \"weights\" of rank 1 on b differs"));
  }
}

TEST_CASE("Job: the comparison is before what is done between steps, such as a checkpoint") {
  std::atomic<int> visits{0};
  const auto errors =
      run_ranks({.world_size = 2},
                [&](Job& job, int rank) {
                  double weight = 1;
                  job.keep("weight", buffer(&weight, 1));
                  job.between(1, [&](ProcessGroup&) { ++visits; });
                  job.run(2, [&](Step& step) { step.commit([&] { weight += rank; }); });
                },
                {.check_every = 1});
  CHECK(visits == 0);
  for (const auto& error : errors) {
    REQUIRE(error);
    CHECK_THAT(error->what(), Contains("after step 1 \"weight\" of rank 1"));
  }
}

TEST_CASE(
    "Job: ranks that compare at different steps are refused before they wait for each other") {
  const test::TemporaryDirectory directory;
  const test::Ranks ranks{.world_size = 2};
  std::vector<std::string> texts(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      JobOptions options = fixed(ranks, directory / "store", rank);
      options.check_every = 1 + rank;
      Job job(std::move(options));
      try {
        job.run(2, kNothing);
      } catch (const Error& error) {
        texts[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& text : texts)
    CHECK_THAT(text, Contains("check_every, even_shards, memory_every or audit of JobOptions"));
}

TEST_CASE("Kept state: the odd ranks are those that differ from most") {
  CHECK(odd_ranks({7}).empty());
  CHECK(odd_ranks({7, 7, 7}).empty());
  CHECK(odd_ranks({7, 9, 7}) == std::vector<int>{1});
  CHECK(odd_ranks({9, 7, 7}) == std::vector<int>{0});
  CHECK(odd_ranks({9, 7}) == std::vector<int>{1});  // As many: the lowest rank's.
  CHECK(odd_ranks({9, 7, 7, 9, 1}) == std::vector<int>{1, 2, 4});
}

TEST_CASE("Job: without a link an error of a lost peer passes") {
  const auto errors = run_ranks({.world_size = 2}, [](Job& job, int) {
    job.run(2, [](Step& step) {
      if (step.rank() == 1) throw Error(ErrorKind::corrupt, {}, "leaves");
      step.group().barrier();
      step.commit();
    });
  });
  REQUIRE(errors[0]);
  CHECK(errors[0]->kind() == ErrorKind::peer_lost);
  CHECK(errors[1]->kind() == ErrorKind::corrupt);
}

TEST_CASE("Kept state: a damaged piece is refused") {
  const auto errors = test::Ranks{.world_size = 2}.run([](ProcessGroup& group) {
    KeptState kept;
    std::vector<std::uint8_t> bytes(100, 7);
    kept.add({.name = "bytes", .array = buffer(bytes.data(), bytes.size())});
    if (group.rank() == 1) return kept.put(group, kept.receive(group, 0, true));
    // The source's part, with a wrong checksum.
    std::int64_t size = 100;
    group.broadcast(buffer(&size, 1), 0);
    std::vector<std::uint8_t> piece(108, 7);
    group.broadcast(buffer(piece.data(), piece.size()), 0);
  });
  CHECK_FALSE(errors[0]);
  REQUIRE(errors[1]);
  CHECK(errors[1]->kind() == ErrorKind::corrupt);
  CHECK(errors[1]->where().peer == 0);
}

// The agent of one worker, this process.
class Agent {
 public:
  Agent() {
    int ends[2];
    REQUIRE(::socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends) == 0);
    end_ = UniqueFd(ends[0]);
    number = ends[1];
    const timeval patience{.tv_sec = 60, .tv_usec = 0};
    ::setsockopt(ends[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    ::setenv(kVariable, std::to_string(ends[1]).c_str(), 1);
  }
  ~Agent() { ::unsetenv(kVariable); }

  void seat(int round) {
    store_ = std::make_unique<worker_sdk::StoreHost>(
        "127.0.0.1", std::uint16_t{0}, worker_sdk::deadline_after(std::chrono::seconds(60)));
    deliver(Seated{.round = round,
                   .restart_count = 1,
                   .rank = 0,
                   .world_size = 1,
                   .local_rank = 5,
                   .local_world_size = 1,
                   .master_address = "127.0.0.1",
                   .master_port = store_->port()});
  }
  std::unique_ptr<Store> open_store() const {
    return connect_tcp_store("127.0.0.1", store_->port(), std::chrono::seconds(60));
  }
  void deliver(const AgentMessage& message) {
    const std::string bytes = encode(message);
    if (::send(end_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) < 0) std::abort();
  }
  template <class Message>
  Message take() {
    char bytes[kMessageBytesMax];
    const ssize_t got = ::recv(end_.get(), bytes, sizeof(bytes), 0);
    if (got <= 0) std::abort();
    return std::get<Message>(decode_worker_message({bytes, static_cast<std::size_t>(got)}).value());
  }

  int number = -1;  // Of the worker's end.

 private:
  UniqueFd end_;
  std::unique_ptr<worker_sdk::StoreHost> store_;
};

TEST_CASE("Job: a change ends the round after a step, and repeats none") {
  struct Enough {};
  Agent agent;
  Job job;
  agent.take<Ready>();
  agent.seat(0);
  std::int64_t last = -1;
  std::thread others;
  const auto body = [&](Step& step) {
    CHECK(step.number() == last + 1);
    CHECK(step.group().identity().local_rank == 5);
    CHECK(step.group().restart_count() == 1);
    if (step.round() == 2) throw Enough();
    last = step.number();
    if (last == 0) {
      CHECK(agent.take<Resumed>().step == 0);
      agent.deliver(Change{.round = 0, .why = "growth"});
      others = std::thread([&] {
        if (agent.take<LeftRound>().step > 0) agent.seat(2);
      });
    }
    step.commit();
  };
  CHECK_THROWS_AS(job.run(std::int64_t{1} << 40, body), Enough);
  others.join();
  CHECK(
      agent.take<Resumed>() ==
      Resumed{.round = 2, .step = last + 1, .repeated = 0, .lost_us = job.counters().lost.count()});
  CHECK(job.counters().planned == 1);
}

// What the body calls after the round has ended, and what it makes of the error.
using Call = std::function<void(Step&)>;
using Handle = std::function<void(const Error&)>;

void reduce(Step& step) {
  float value = 0;
  step.group().all_reduce(buffer(&value, 1));
}
void begin_shard(Step& step) { (void)step.begin_shard(0); }
void take_samples(Step& step) {
  const GlobalBatches batches({.sets = {{.length = 8}}, .global_batch = 4, .shards = 2});
  (void)step.samples(batches, 0);
}
const Call kCalls[] = {reduce, begin_shard, take_samples};

void check_fence(const Call& call, const Handle& handle) {
  Agent agent;
  Job job;
  agent.take<Ready>();
  agent.seat(0);
  int calls = 0;
  job.run(1, [&](Step& step) {
    if (++calls > 1) {
      CHECK(step.is_repeated());
      CHECK(step.round() == 1);
      call(step);
      return step.commit();
    }
    agent.take<Resumed>();
    agent.deliver(Fence{.round = 0, .lost_rank = -1, .why = "a test"});
    CHECK(agent.take<LeftRound>() == LeftRound{.round = 0, .step = 0});
    agent.seat(1);
    try {
      call(step);
      FAIL("an operation of a round that is over has succeeded");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::membership_changed);
      CHECK_THAT(error.what(), Contains("a test"));
      handle(error);
    }
    step.commit();
  });
  CHECK(calls == 2);
  const auto resumed = agent.take<Resumed>();
  CHECK(resumed.round == 1);
  CHECK(resumed.repeated == 1);
  CHECK(job.counters().rounds == 2);
  CHECK(job.counters().repeated_steps == 1);
}

TEST_CASE("Job: a fence ends operations of the round and its shards, and the step runs again") {
  for (const Call& call : kCalls) check_fence(call, [](const Error& error) { throw Error(error); });
}
TEST_CASE("Job: an error of the round may be swallowed, or put into another one") {
  for (const Call& call : kCalls) {
    check_fence(call, [](const Error&) {});
    check_fence(call, [](const Error& error) { throw std::runtime_error(error.what()); });
  }
}

TEST_CASE("Job: a state that is torn on all ranks is an error, not a start from the beginning") {
  Agent agent;
  Job job;
  agent.take<Ready>();
  agent.seat(0);
  try {
    job.run(1, [&](Step& step) {
      step.commit([&] {
        agent.take<Resumed>();
        agent.deliver(Fence{.round = 0, .lost_rank = -1, .why = "a test"});
        agent.take<LeftRound>();
        agent.seat(1);
        throw Error(ErrorKind::membership_changed, {}, "as by an operation of the program's own");
      });
    });
    FAIL("nothing was thrown");
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::corrupt);
  }
}

TEST_CASE("Job: one that ends before its work is done says so in the store of the round") {
  for (const bool fails : {true, false}) {
    Agent agent;
    std::optional<Job> job(std::in_place);
    agent.seat(3);
    const auto run = [&] {
      job->run(2, [&](Step& step) {
        if (fails && step.number() == 1) throw std::runtime_error("a bug");
        step.commit();
      });
    };
    if (fails) CHECK_THROWS_WITH(run(), "a bug");
    if (!fails) run();
    job.reset();
    const auto store = agent.open_store();
    if (fails) CHECK(store->get("ddprun/a rank has left", std::chrono::seconds(60)) == "0");
    if (!fails) CHECK_FALSE(store->check({"ddprun/a rank has left"}));
  }
}

TEST_CASE("Job: where a rank has left the job the error is not held back for a minute") {
  Agent agent;
  Job job;
  agent.seat(0);
  const auto began = std::chrono::steady_clock::now();
  const auto run = [&] {
    job.run(1, [&](Step& step) {
      step.group().store().set("ddprun/a rank has left", "1");
      throw Error(ErrorKind::peer_lost, {}, "lost rank 1");
    });
  };
  CHECK_THROWS_WITH(run(), Contains("lost rank 1"));
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::seconds(45));
}

TEST_CASE("Job: under a link a second Job is refused") {
  Agent agent;
  {
    const Job job;
    CHECK((::fcntl(agent.number, F_GETFD) & FD_CLOEXEC) != 0);
    agent.take<Ready>();
    try {
      const Job second;
      FAIL("there are two");
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::bad_argument);
      CHECK_THAT(error.what(), Contains("another Job of this process"));
    }
  }
  CHECK_THROWS_WITH(Job(), Contains("is no link to an agent"));
}

}  // namespace
}  // namespace ddprun::elastic
