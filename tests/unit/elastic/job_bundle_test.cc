// Which steps of a job leave a bundle, and which state is in it. Replays are in
// tests/failures/replay_test.py.

#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <memory>
#include <thread>

#include "common/bundle.h"
#include "common/checksum.h"
#include "ddprun/atomic_file.h"
#include "ddprun/elastic/job.h"
#include "tests/support/ranks.h"
#include "tests/support/stderr_of.h"
#include "worker_sdk/base/replace_file.h"

namespace ddprun::elastic {
namespace {

using Catch::Contains;

constexpr int kBundleShards = 6;
constexpr std::size_t kBundleWeights = 20;

struct BundleRun {
  int ranks = 2;
  std::int64_t steps = 6;
  // Of step and shard: what goes wrong in it.
  std::function<bool(std::int64_t, int)> nan = [](auto, auto) { return false; };
  std::function<void(Step&, int)> in_shard = [](auto&, auto) {};
  std::function<void(Step&)> after_commit = [](auto&) {};
  std::function<void(Step&)> in_apply = [](auto&) {};
  std::function<void()> in_save = [] {};
  const char* every = nullptr;  // --bundle-every.
};

// {name of the file: bundle}, and the state that it has, one number.
struct Written {
  Bundle bundle;
  float weight = -1;
};
using AllWritten = std::map<std::string, Written>;

AllWritten written_in(const std::string& folder) {
  AllWritten all;
  for (const std::string& name : names_in(folder).names) {
    const std::string file = read_file(folder + "/" + name).value();
    const BundleStart start = decode_start(file, file.size()).value();
    Written one{start.bundle};
    std::memcpy(&one.weight, file.data() + start.items_at, sizeof one.weight);
    CHECK(file.size() == start.items_at + kBundleWeights * sizeof(float) + 2 + kChecksumBytes);
    all.emplace(name, one);
  }
  return all;
}

// Each weight is the number of committed steps; the printed lines go to `printed`.
AllWritten written_by(const BundleRun& run, std::string* printed = nullptr) {
  const test::TemporaryDirectory directory;
  ::setenv(kBundlesVariable, (directory / "a/b").c_str(), 1);
  if (run.every) ::setenv(kBundleEveryVariable, run.every, 1);
  const test::Ranks world{.world_size = run.ranks, .backend = "shm"};
  const std::string text = test::stderr_of([&] {
    std::vector<std::thread> threads;
    for (int rank = 0; rank < run.ranks; ++rank) {
      threads.emplace_back([&, rank] {
        std::vector<float> weights(kBundleWeights, 0), gradient(kBundleWeights);
        try {
          Job job({.init = world.options(directory / "store", rank)});
          GradientSums sums({kBundleWeights});
          job.keep("weights", buffer(weights.data(), kBundleWeights));
          job.keep(
              "units",
              [&] {
                run.in_save();
                return sums.state();
              },
              [&](auto s) { sums.restore(s); });
          const std::vector<std::span<float>> out = {gradient};
          bool is_used = false;
          job.run(run.steps, [&](Step& step) {
            if (!std::exchange(is_used, true)) sums.use(step.group());
            do {
              sums.begin();
              for (const int shard : step.shards(kBundleShards)) {
                step.begin_shard(shard, "sample " + std::to_string(100 + shard));
                run.in_shard(step, shard);
                std::vector<float> one(kBundleWeights, 1);
                if (run.nan(step.number(), shard)) one[3] = std::numeric_limits<float>::quiet_NaN();
                const std::vector<std::span<const float>> views = {one};
                sums.add(views);
                if (!sums.is_finite()) step.capture(shard, "not finite", sums.hash(views));
              }
            } while (step.reduce(sums, out).kind == GradientSums::Kind::over);
            step.commit([&] {
              for (float& weight : weights) weight += 1;
              sums.commit();
              run.in_apply(step);
            });
            run.after_commit(step);
          });
        } catch (const std::exception&) {
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  ::unsetenv(kBundlesVariable);
  ::unsetenv(kBundleEveryVariable);
  if (printed) *printed = text;
  return written_in(directory / "a/b");
}

TEST_CASE("Job bundle: an exception in a shard is captured with the state before the step") {
  std::string printed;
  const std::string folder = std::filesystem::current_path();
  const auto all = written_by({.in_shard =
                                   [](Step& step, int shard) {
                                     if (step.number() == 3 && shard == 4) {
                                       std::filesystem::current_path("/");
                                       throw std::runtime_error("bad sample");
                                     }
                                   }},
                              &printed);
  std::filesystem::current_path(folder);
  REQUIRE(all.size() == 1);
  const auto& [name, one] = *all.begin();
  CHECK(one.bundle.folder == folder);  // In which the program began.
  CHECK(name == "none-step-3.bundle");
  CHECK(one.weight == 3);
  CHECK(one.bundle.why == "std::runtime_error: bad sample");
  CHECK(one.bundle.work == "step 3, shard 4: sample 104");
  CHECK(one.bundle.step == 3);
  CHECK(one.bundle.shard == 4);
  CHECK(one.bundle.shards == kBundleShards);
  CHECK(one.bundle.world_size == 2);
  CHECK(one.bundle.hash.empty());
  CHECK_FALSE(one.bundle.command.empty());
  CHECK_THAT(printed, Contains("rank 1 on ") && Contains(": step 3, shard 4: sample 104: ") &&
                          Contains("ddprun replay "));
}

TEST_CASE("Job bundle: of several ranks that fail in a step one writes") {
  std::string printed;
  std::atomic<int> failed = 0;
  const auto all_have_failed = [&] {  // The first one writes when the others fail.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (failed > 0 && failed < 3 && std::chrono::steady_clock::now() < until)
      std::this_thread::yield();
  };
  const auto all = written_by({.ranks = 3,
                               .in_shard =
                                   [&](Step& step, int) {
                                     if (step.number() != 2) return;
                                     ++failed;
                                     throw std::runtime_error("bad code");
                                   },
                               .in_save = all_have_failed},
                              &printed);
  CHECK(all.size() == 1);
  const std::string words = "compute it again";
  const std::size_t first = printed.find(words);
  CHECK(first != std::string::npos);
  CHECK(printed.find(words, first + 1) == std::string::npos);
  CHECK_THAT(printed, !Contains("warning"));
}

TEST_CASE("Job bundle: a step that is committed, or half committed, leaves none") {
  CHECK(written_by({.after_commit = [](Step& step) {
          if (step.number() == 3) throw std::runtime_error("too late");
        }}).empty());
  CHECK(written_by({.in_apply = [](Step& step) {
          if (step.number() == 3) throw std::runtime_error("torn");
        }}).empty());
}

TEST_CASE("Job bundle: a NaN is captured where it begins, with a hash, and the run goes on") {
  const auto all = written_by({.nan = [](std::int64_t step, int shard) {
    return (step == 2 && shard == 1) || step == 3 || (step == 5 && shard == 5);
  }});
  REQUIRE(all.size() == 2);
  const Written& first = all.at("none-step-2.bundle");
  CHECK(first.weight == 2);
  CHECK(first.bundle.shard == 1);
  CHECK(first.bundle.why == "not finite");
  CHECK(first.bundle.hash.size() == 16);
  CHECK(all.at("none-step-5.bundle").bundle.shard == 5);
}

TEST_CASE("Job bundle: a rank writes eight of what does not end it, and eight of a run stay") {
  const auto of_one = written_by({.ranks = 1, .steps = 40, .nan = [](std::int64_t step, int shard) {
                                    return step % 3 == 2 && shard == 0;
                                  }});
  CHECK(of_one.size() == 8);
  CHECK(of_one.contains("none-step-2.bundle"));
  CHECK(of_one.contains("none-step-23.bundle"));
  const auto of_two = written_by({.steps = 40, .nan = [](std::int64_t step, int shard) {
                                    return step % 3 == 2 && shard == (step % 2 ? 0 : 5);
                                  }});
  CHECK(of_two.size() == 8);
}

TEST_CASE("Job bundle: a regular one has the state before its step, beside those of failures") {
  std::string printed;
  const auto all = written_by(
      {.nan = [](std::int64_t step, int shard) { return step == 4 && shard == 5; }, .every = "2"},
      &printed);
  REQUIRE(all.size() == 4);
  for (const int step : {0, 2, 4}) {
    const Written& one = all.at(regular_name("none", step));
    CHECK(one.weight == static_cast<float>(step));
    CHECK(one.bundle.step == step);
    CHECK(one.bundle.shard == -1);
    CHECK(one.bundle.cause == Bundle::Cause::kRequest);
  }
  CHECK(all.at("none-step-4.bundle").bundle.shard == 5);
  CHECK_THAT(printed, !Contains("regular"));
}

TEST_CASE("Job bundle: of regular ones sixteen stay, the first and the last among them") {
  const auto all = written_by({.ranks = 1, .steps = 40, .every = "1"});
  CHECK(all.size() == 16);
  CHECK(all.contains(regular_name("none", 0)));
  CHECK(all.contains(regular_name("none", 39)));
  CHECK(all.contains(regular_name("none", 38)));
}

TEST_CASE("Job bundle: what is no number of steps is refused") {
  ::setenv(kBundlesVariable, "/nowhere", 1);
  for (const char* text : {"0", "-3", "many", "7x"}) {
    ::setenv(kBundleEveryVariable, text, 1);
    CHECK_THROWS_WITH(Job(), Contains("not a number of steps"));
  }
  ::unsetenv(kBundleEveryVariable);
  ::unsetenv(kBundlesVariable);
}

TEST_CASE("Job bundle: the number of a shard may be any") {
  const auto all = written_by({.ranks = 1, .in_shard = [](Step& step, int shard) {
                                 step.begin_shard(100 + shard);
                                 if (step.number() == 3) throw std::runtime_error("bad");
                               }});
  REQUIRE(all.size() == 1);
  CHECK(all.begin()->second.bundle.shard == 100);
  CHECK(all.begin()->second.bundle.shards == 0);
}

TEST_CASE("Job bundle: a hash that the kept units do not lead to is left out") {
  const auto all = written_by(
      {.in_shard = [count = std::make_shared<std::atomic<int>>(0)](Step& step, int shard) {
        // The first time the units are too small for the step.
        const bool is_again = shard == 0 && ++*count > 1;
        if (step.number() == 0 && is_again) step.capture(0, "found late", 77);
      }});
  REQUIRE(all.size() == 1);
  CHECK(all.begin()->second.bundle.why == "found late");
  CHECK(all.begin()->second.bundle.hash.empty());
}

TEST_CASE("Job bundle: a private file is a new one, though another lies in its way") {
  const test::TemporaryDirectory directory;
  const std::string path = directory / "a", other = directory / "other";
  replace_file(other, "theirs");
  REQUIRE(::symlink(other.c_str(), (path + ".tmp").c_str()) == 0);
  worker_sdk::replace_file_by_parts(
      path, [](const auto& write) { write("ours"); }, 0600);
  CHECK(read_file(other) == "theirs");
  struct stat found {};
  REQUIRE(::lstat(path.c_str(), &found) == 0);
  CHECK(S_ISREG(found.st_mode));
  CHECK((found.st_mode & 0777) == 0600);
}

TEST_CASE("Job bundle: a folder that cannot be made is a warning") {
  ::setenv(kBundlesVariable, "/proc/none", 1);
  Job job;
  const std::string printed = test::stderr_of([&] {
    CHECK_THROWS_WITH(job.run(1, [](Step&) { throw std::runtime_error("bad"); }), "bad");
  });
  ::unsetenv(kBundlesVariable);
  CHECK_THAT(printed, Contains("ddprun: warning: no bundle of step 0: cannot make /proc/none"));
}

}  // namespace
}  // namespace ddprun::elastic
