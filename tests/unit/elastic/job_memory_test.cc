// A job that keeps its state in a memory folder, and one that begins when no worker has the state.

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/elastic/job.h"
#include "tests/support/ranks.h"
#include "tests/support/stderr_of.h"

namespace ddprun::elastic {
namespace {

using Catch::Contains;
using test::stderr_of;

// The variables of a worker, while it lives.
struct MemoryFolder {
  explicit MemoryFolder(const char* size = "100000000") {
    ::setenv("DDPRUN_MEMORY", (folder / "own").c_str(), 1);
    ::setenv("DDPRUN_MEMORY_SIZE", size, 1);
    ::unsetenv("DDPRUN_MEMORY_COPIES");
    std::filesystem::create_directory(folder / "own");
  }
  ~MemoryFolder() {
    ::unsetenv("DDPRUN_MEMORY");
    ::unsetenv("DDPRUN_MEMORY_SIZE");
  }

  // Newest first.
  std::vector<std::string> copies() const {
    std::vector<std::string> found;
    const std::string path = folder / "own/elastic-job";
    if (!std::filesystem::exists(path)) return found;
    for (const auto& entry : std::filesystem::directory_iterator(path)) {
      found.push_back(entry.path());
    }
    std::sort(found.rbegin(), found.rend());
    return found;
  }

  test::TemporaryDirectory folder;
};

// A life of a worker: an array, and state that functions save.
struct Life {
  explicit Life(std::int64_t every = 2) : job(JobOptions{.memory_every = every}) {
    job.keep("weights", buffer(weights.data(), weights.size()))
        .keep(
            "log", [this] { return log; }, [this](std::string_view text) { log = text; });
  }
  // Returns the number of the first step, and what was printed.
  std::string run(std::int64_t steps) {
    return stderr_of([&] {
      job.run(steps, [&](Step& step) {
        if (first < 0) first = step.number();
        step.commit([&] {
          for (std::size_t i = 0; i < weights.size(); ++i) {
            weights[i] += static_cast<double>(step.number()) * 0.1 + static_cast<double>(i);
          }
          log += std::to_string(step.number()) + " ";
        });
      });
    });
  }
  std::vector<double> weights = std::vector<double>(1000);
  std::string log;
  std::int64_t first = -1;
  Job job;
};

TEST_CASE("Job in memory: when no worker has the state, it continues from the folder") {
  const MemoryFolder memory;
  Life whole(-1);
  whole.run(12);
  CHECK(memory.copies().empty());
  auto before = std::make_unique<Life>();
  before->run(7);
  before.reset();  // Waits for what is being written.
  CHECK(memory.copies().size() == 2);
  Life after;
  CHECK_THAT(after.run(12), Contains("continues at step 6, as kept in the memory folder"));
  CHECK(after.first == 6);
  CHECK(after.job.committed() == 12);
  CHECK(after.weights == whole.weights);
  CHECK(after.log == whole.log);
}

TEST_CASE("Job in memory: a copy that is torn or damaged is not used, but the one before it") {
  const MemoryFolder memory;
  std::make_unique<Life>()->run(7);
  const auto copies = memory.copies();
  REQUIRE(copies.size() == 2);
  const std::string file = copies.front() + "/rank-0.bin";
  SECTION("a file is missing") { std::filesystem::remove(file); }
  SECTION("a file is too short") { std::filesystem::resize_file(file, 20); }
  SECTION("there is no manifest") { std::filesystem::remove(copies.front() + "/manifest.json"); }
  SECTION("bytes have changed") {
    std::fstream(file, std::ios::in | std::ios::out | std::ios::binary).seekp(100) << "damage";
    Life after;
    CHECK_THAT(after.run(7), Contains("step 6 in the memory folder cannot be used") &&
                                 Contains("continues at step 4"));
    CHECK(after.first == 4);
    return;
  }
  auto after = std::make_unique<Life>();
  CHECK_THAT(after->run(8), Contains("continues at step 4"));
  CHECK(after->first == 4);
  after.reset();
  CHECK_THAT(Life().run(8), Contains("continues at step 8"));
}

TEST_CASE("Job in memory: a newer checkpoint of the program counts more, an older one less") {
  const MemoryFolder memory;
  std::make_unique<Life>()->run(7);
  auto newer = std::make_unique<Life>();
  newer->job.resume(9);
  CHECK(newer->run(10).empty());
  CHECK(newer->first == 9);
  newer.reset();
  Life older;
  older.job.resume(3);
  CHECK_THAT(older.run(12), Contains("continues at step 10"));  // Which `newer` has kept.
}

TEST_CASE("Job in memory: the copies of a job that keeps other state are not used") {
  const MemoryFolder memory;
  std::make_unique<Life>()->run(7);
  double one = 0;
  Job other(JobOptions{.memory_every = 100});
  other.keep("weights", buffer(&one, 1));
  std::int64_t first = -1;
  const std::string text =
      stderr_of([&] { other.run(1, [&](Step& step) { first = step.number(), step.commit(); }); });
  CHECK(first == 0);
  CHECK_THAT(text, Contains("cannot be used") && Contains("\"weights\" is missing, or of another"));
}

TEST_CASE("Job in memory: shards continue from the folder as well") {
  const MemoryFolder memory;
  const auto life = [](std::int64_t steps, std::int64_t& first) {
    Job job(JobOptions{.memory_every = 2});
    Sharded& state = job.keep_sharded("state", {.count = 100, .type = DataType::f64, .shards = 7});
    std::vector<double> all(100);
    job.between(1, [&](ProcessGroup& group) { state.gather(group, buffer(all.data(), 100)); });
    first = -1;
    job.run(steps, [&](Step& step) {
      if (first < 0) first = step.number();
      const auto next = state.next<double>();
      for (std::size_t i = 0; i < next.size(); ++i) {
        next[i] += static_cast<double>(step.number()) * 0.1 + static_cast<double>(i);
      }
      step.commit();
    });
    return all;
  };
  std::int64_t first = 0;
  ::setenv("DDPRUN_MEMORY", "", 1);
  const auto whole = life(12, first);
  ::setenv("DDPRUN_MEMORY", (memory.folder / "own").c_str(), 1);
  life(7, first);
  CHECK(first == 0);
  CHECK(life(12, first) == whole);
  CHECK(first == 6);
}

TEST_CASE("Job in memory: a folder without room is a warning, once") {
  const MemoryFolder memory("20000");
  Life life;
  CHECK_THAT(life.run(3), Contains("must have room for three times the state"));
  CHECK(life.run(9).empty());
  CHECK(memory.copies().empty());
}

TEST_CASE("Job in memory: by itself it saves as often as the cost allows") {
  const MemoryFolder memory;
  Life(0).run(9);
  CHECK(memory.copies().empty());
  Life(0).run(10);
  CHECK(memory.copies().size() == 1);
}

TEST_CASE("Job in memory: an interval that is none is refused") {
  CHECK_THROWS_WITH(Job(JobOptions{.memory_every = -2}), Contains("memory_every"));
}

}  // namespace
}  // namespace ddprun::elastic
