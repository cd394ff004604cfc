// Audits of jobs of fixed ranks, in which one rank computes wrong.

#include <algorithm>
#include <catch2/catch.hpp>
#include <mutex>
#include <set>
#include <utility>

#include "common/bundle.h"
#include "ddprun/atomic_file.h"
#include "ddprun/elastic/gradient_sums.h"
#include "ddprun/elastic/job.h"
#include "tests/support/ranks.h"
#include "tests/support/stderr_of.h"

namespace ddprun::elastic {
namespace {

using Catch::Contains;

constexpr int kShards = 12;
constexpr std::size_t kWeights = 50;

struct AuditRun {
  std::vector<std::string> hosts = {"a", "b", "c", "d"};
  double percent = 100;
  int wrong = -1;            // The rank that computes wrong,
  bool is_for_ever = false;  // again and again, or once only.
  // What is wrong: the gradient of one of its own shards, of one that it audits, or its weights.
  enum class What { kOwn, kAudited, kWeights, kSum } what = What::kOwn;
  std::int64_t steps = 6;
  std::int64_t at = 3;  // The step of the wrong gradient.
};

struct Found {
  std::vector<std::optional<Error>> errors;
  std::set<std::vector<float>> weights;  // Of the ranks that have come to the end.
  std::int64_t audited = 0, committed = 0;
};

Found audited(const AuditRun& run) {
  const test::TemporaryDirectory directory;
  const auto ranks = static_cast<int>(run.hosts.size());
  const test::Ranks world{.world_size = ranks, .backend = "cpu", .hosts = run.hosts};
  Found found{.errors = std::vector<std::optional<Error>>(run.hosts.size()), .weights = {}};
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      std::vector<float> weights(kWeights, 1), gradient(kWeights);
      const std::vector<std::span<float>> out = {gradient};
      try {
        Job job({.init = world.options(directory / "store", rank), .audit = run.percent});
        GradientSums sums({kWeights});
        job.keep("weights", buffer(weights.data(), kWeights));
        bool is_used = false, has_erred = false;
        const auto errs = [&](AuditRun::What what) {
          if (rank != run.wrong || what != run.what) return false;
          return !std::exchange(has_erred, true) || run.is_for_ever;
        };
        job.run(run.steps, [&](Step& step) {
          if (!std::exchange(is_used, true)) sums.use(step.group());
          const auto compute = [&](int shard, AuditRun::What what) {
            std::vector<float> one(kWeights);
            for (std::size_t k = 0; k < kWeights; ++k) {
              one[k] = weights[k] / static_cast<float>(2 + shard) - static_cast<float>(k);
            }
            if (step.number() == run.at && step.is_audited(shard) && errs(what)) one[7] += 1;
            const std::vector<std::span<const float>> views = {one};
            if (step.is_audited(shard)) step.audit(shard, sums.hash(views));
            if (what == AuditRun::What::kOwn) sums.add(views);
          };
          do {
            sums.begin();
            for (const int shard : step.shards(kShards)) compute(shard, AuditRun::What::kOwn);
            for (const int shard : step.audits()) compute(shard, AuditRun::What::kAudited);
          } while (step.reduce(sums, out).kind == GradientSums::Kind::over);
          if (step.number() == 2 && errs(AuditRun::What::kSum)) gradient[3] += 1;
          step.commit([&] {
            for (std::size_t k = 0; k < kWeights; ++k) weights[k] -= 0.01F * gradient[k];
            sums.commit();
          });
          if (step.number() == 2 && errs(AuditRun::What::kWeights)) weights[9] += 1;
        });
        const std::lock_guard lock(mutex);
        found.weights.insert(weights);
        found.audited += job.counters().audited_shards;
        found.committed = job.committed();
      } catch (const Error& error) {
        found.errors[static_cast<std::size_t>(rank)] = error;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return found;
}

// All ranks, as no launcher would replace one.
void check_named(const AuditRun& run, const std::string& text) {
  const Found found = audited(run);
  for (const auto& error : found.errors) {
    REQUIRE(error);
    CHECK(error->kind() == ErrorKind::wrong_result);
    CHECK(error->where().peer == run.wrong);
    CHECK_THAT(error->what(), Contains(text));
  }
}

TEST_CASE("Audit: in a job in which all is right nothing is found, and nothing changes") {
  const Found none = audited({.percent = 0});
  CHECK(test::outcome(none.errors) == "all well");
  CHECK(none.audited == 0);
  for (const std::vector<std::string>& hosts :
       {std::vector<std::string>{"a", "b"}, {"a", "a", "a"}, {"a", "b", "c", "d"}}) {
    for (const double percent : {20.0, 100.0}) {
      const Found found = audited({.hosts = hosts, .percent = percent});
      CHECK(test::outcome(found.errors) == "all well");
      CHECK(found.weights == none.weights);
      CHECK(found.committed == 6);
      if (percent == 100) CHECK(found.audited == 6 * kShards);
      CHECK(found.audited > 0);
    }
  }
}

TEST_CASE("Audit: a rank that computes wrong is named, once or for ever, as owner or as auditor") {
  for (int wrong = 0; wrong < 4; ++wrong) {
    for (const bool is_for_ever : {false, true}) {
      for (const auto what : {AuditRun::What::kOwn, AuditRun::What::kAudited}) {
        INFO(wrong << is_for_ever << static_cast<int>(what));
        check_named({.wrong = wrong, .is_for_ever = is_for_ever, .what = what},
                    "rank " + std::to_string(wrong) + " on " + "abcd"[wrong] + " is wrong");
      }
    }
  }
}

TEST_CASE("Audit: on one host a third rank decides") {
  check_named({.hosts = {"a", "a", "a"}, .wrong = 1}, "rank 1 on a is wrong");
}

TEST_CASE("Audit: weights that were changed behind the job's back are named with their rank") {
  check_named({.wrong = 2, .what = AuditRun::What::kWeights},
              "before step 3 the kept state of rank 2 on c");
  check_named({.wrong = 0, .what = AuditRun::What::kSum},
              "before step 3 the kept state of rank 0 on a");
}

TEST_CASE("Audit: of two hosts both are named; the run ends only if they differ again") {
  Found found;
  const std::string printed = test::stderr_of([&] {
    found = audited({.hosts = {"a", "b"}, .wrong = 1});
  });
  CHECK(test::outcome(found.errors) == "all well");
  CHECK(found.committed == 6);
  CHECK(found.weights == audited({.percent = 0}).weights);
  CHECK_THAT(printed, Contains("rank 0 on a") && Contains("rank 1 on b") &&
                          Contains("one of the two was wrong before"));
  const Found again = audited({.hosts = {"a", "b"}, .wrong = 1, .is_for_ever = true});
  for (const auto& error : again.errors) {
    REQUIRE(error);
    CHECK(error->kind() == ErrorKind::wrong_result);
    CHECK(error->where().peer == -1);
    CHECK_THAT(error->what(),
               Contains("rank 0 on a") && Contains("rank 1 on b") && Contains("no third host"));
  }
}

TEST_CASE("Audit: a rank that is right leaves a bundle with the hash that is right") {
  const test::TemporaryDirectory directory;
  for (const int wrong : {0, 3}) {
    const std::string folder = directory / std::to_string(wrong);
    ::setenv(kBundlesVariable, folder.c_str(), 1);
    std::string printed;
    Found found;
    printed = test::stderr_of([&] { found = audited({.wrong = wrong}); });
    ::unsetenv(kBundlesVariable);
    const std::string file = read_file(folder + "/none-step-3.bundle").value();
    const Bundle bundle = decode_start(file, file.size()).value().bundle;
    CHECK(bundle.cause == Bundle::Cause::kRequest);
    CHECK(bundle.work.starts_with("step 3, shard "));
    CHECK_FALSE(bundle.who.starts_with("rank " + std::to_string(wrong)));
    REQUIRE(found.errors.front());
    REQUIRE(bundle.hash.size() == 16);
    const std::string text = found.errors.front()->what();  // Both that are right have it.
    const std::size_t first = text.find(bundle.hash);
    REQUIRE(first != std::string::npos);
    CHECK(text.find(bundle.hash, first + 1) != std::string::npos);
  }
}

TEST_CASE("Audit: no hash is in the bundle of a step that was computed with greater units") {
  const test::TemporaryDirectory directory;
  ::setenv(kBundlesVariable, (directory / "").c_str(), 1);
  (void)test::stderr_of([&] { (void)audited({.wrong = 0, .is_for_ever = true, .at = 0}); });
  ::unsetenv(kBundlesVariable);
  const std::string file = read_file(directory / "none-step-0.bundle").value();
  const Bundle bundle = decode_start(file, file.size()).value().bundle;
  CHECK(bundle.why.starts_with("audit: "));
  CHECK(bundle.hash.empty());
}

}  // namespace
}  // namespace ddprun::elastic
