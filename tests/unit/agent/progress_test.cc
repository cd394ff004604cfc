// The page between worker and agent, from both of its sides.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>

#include "agent/health/progress_files.h"
#include "agent/health/progress_monitor.h"
#include "tests/support/ranks.h"
#include "worker_sdk/worker/progress.h"

namespace ddprun {
namespace {

using agent::ProgressFile;
using agent::ProgressSample;
using worker_sdk::Call;
using worker_sdk::InCollective;
using worker_sdk::OpKind;
using worker_sdk::Progress;

Call call(OpKind kind, std::uint64_t number) { return {.what = {.kind = kind}, .number = number}; }

TEST_CASE("Progress: a bundle is requested only of a process that is a rank of a job",
          "[progress]") {
  ProgressFile file = ProgressFile::make(3).value();
  CHECK_FALSE(file.request_bundle());
  Progress progress(file.path());
  CHECK_FALSE(file.request_bundle());
  CHECK(progress.requested_bundles() == 0);
  progress.take_requests();
  CHECK(file.request_bundle());
  CHECK(progress.requested_bundles() == 1);
}

TEST_CASE("Progress: the agent sees where the worker is", "[progress]") {
  ProgressFile file = ProgressFile::make(3).value();
  CHECK_FALSE(file.read().reports);
  {
    Progress progress(file.path());
    REQUIRE(progress.reports());
    CHECK(file.read().reports);
    CHECK(file.read().phase.empty());
    {
      const InCollective here(progress, call(OpKind::kAllReduce, 17));
      const ProgressSample inside = file.read();
      CHECK(inside.in_collective);
      CHECK(inside.phase == "all_reduce");
      CHECK(inside.number == 17);
    }
    const ProgressSample after = file.read();
    CHECK_FALSE(after.in_collective);
    CHECK(after.number == 17);
    progress.set_phase("evaluate on the whole validation set");
    CHECK(file.read().phase == "evaluate on the whole v");
    const std::uint64_t beats = file.read().beats;
    { const InCollective here(progress, call(OpKind::kSend, 400)); }
    CHECK(file.read().phase == "evaluate on the whole v");
    CHECK(file.read().number == 17);  // Messages are no collectives.
    CHECK(file.read().beats == beats + 2);
    { const InCollective here(progress, call(OpKind::kAllReduce, 2), /*of_whole_job=*/false); }
    CHECK(file.read().number == 17);  // A sub-group counts for itself.
    CHECK(file.read().beats == beats + 4);
    progress.set_phase("");
    CHECK(file.read().phase.empty());
  }
  CHECK_FALSE(file.read().reports);  // It may take its time to end.
}

TEST_CASE("Progress: the agent tells which rank is gone, once, and every group hears it",
          "[progress]") {
  ProgressFile file = ProgressFile::make(0).value();
  const Progress first(file.path());
  const Progress second(file.path());
  CHECK_FALSE(first.loss_notice());
  file.notify_loss(-1, "nobody");
  CHECK_FALSE(first.loss_notice());
  file.notify_loss(3, "rank 3 was\nkilled " + std::string(1000, 'x'));
  file.notify_loss(4, "rank 4, too");
  for (const Progress* progress : {&first, &second}) {
    const auto word = progress->loss_notice();
    REQUIRE(word);
    CHECK(word->rank == 3);
    CHECK(word->text.substr(0, 18) == "rank 3 was?killed ");
    CHECK(word->text.size() == ProgressPage::kWhyMax - 1);
  }
  CHECK_FALSE(Progress().loss_notice());
}

TEST_CASE("Progress: the agent learns why the last collective failed, and how far it had come",
          "[progress]") {
  ProgressFile file = ProgressFile::make(0).value();
  CHECK(file.fate().failure == ProgressPage::kNone);
  Progress progress(file.path());
  { const InCollective here(progress, call(OpKind::kAllReduce, 17)); }
  progress.note_failure(ErrorKind::mismatch, 2);
  progress.note_failure(ErrorKind::aborted, -1);  // What follows from it.
  CHECK(file.fate().failure == ProgressPage::kMismatch);
  CHECK(file.fate().peer == 2);
  CHECK(file.fate().collective == 17);
  // A program that goes on has survived it.
  { const InCollective here(progress, call(OpKind::kAllReduce, 18)); }
  CHECK(file.fate().failure == ProgressPage::kNone);
  Progress another_group(file.path());
  another_group.note_failure(ErrorKind::timed_out, -1);
  CHECK(file.fate().failure == ProgressPage::kTimedOut);
  CHECK(file.fate().peer == -1);
}

TEST_CASE("Progress: the agent learns that a process has left its group, and what it has kept",
          "[progress]") {
  ProgressFile file = ProgressFile::make(0).value();
  {
    Progress progress(file.path());
    CHECK_FALSE(file.fate().left);
    progress.note_kept(97);
    progress.note_left();
    CHECK(file.fate().left);
    { const InCollective here(progress, call(OpKind::kBarrier, 2)); }
    CHECK_FALSE(file.fate().left);  // It has another group.
    progress.note_left();
  }
  CHECK(file.fate().left);
  CHECK(file.fate().kept_steps == 97);
}

TEST_CASE("Progress: a group that ends reports that, and so does one that is aborted",
          "[progress]") {
  ProgressFile file = ProgressFile::make(0).value();
  ::setenv("DDPRUN_PROGRESS", file.path().c_str(), 1);
  const test::TemporaryDirectory directory;
  std::optional<ProcessGroup> group;
  group = ProcessGroup::init(test::Ranks{.world_size = 1}.options(directory / "first", 0));
  group->barrier();
  CHECK_FALSE(file.fate().left);
  group.reset();
  CHECK(file.fate().left);
  group = ProcessGroup::init(test::Ranks{.world_size = 1}.options(directory / "second", 0));
  group->barrier();
  CHECK_FALSE(file.fate().left);
  group->abort();
  CHECK(file.fate().left);
  ::unsetenv("DDPRUN_PROGRESS");
}

TEST_CASE("Progress: how long a phase took is remembered, but for the first few", "[progress]") {
  ProgressFile file = ProgressFile::make(0).value();
  Progress progress(file.path());
  for (std::uint64_t i = 1; i <= 3; ++i) {
    const InCollective here(progress, call(OpKind::kBarrier, i));
  }
  const InCollective fourth(progress, call(OpKind::kBarrier, 4));
  CHECK(file.read().count == 3);
  CHECK(file.read().longest == Duration::zero());
  { const InCollective nested(progress, call(OpKind::kBarrier, 5)); }
  const InCollective last(progress, call(OpKind::kBarrier, 6));
  CHECK(file.read().longest > Duration::zero());
}

TEST_CASE("Progress: more names than there is room for are counted as one", "[progress]") {
  ProgressFile file = ProgressFile::make(0).value();
  Progress progress(file.path());
  for (int i = 0; i < 40; ++i) progress.set_phase("phase " + std::to_string(i));
  CHECK(file.read().phase == "phase 15");
  progress.set_phase("phase 2");
  CHECK(file.read().phase == "phase 2");
}

TEST_CASE("Progress: one group of a process reports, and a page that is none is left alone",
          "[progress]") {
  ProgressFile file = ProgressFile::make(0).value();
  const Progress first(file.path());
  CHECK_FALSE(Progress(file.path()).reports());
  CHECK(file.read().reports);
  CHECK_FALSE(Progress("").reports());
  CHECK_FALSE(Progress("/no/such/file").reports());
  CHECK_FALSE(Progress("/dev/null").reports());
}

TEST_CASE("Progress: whoever only touches the file reports too", "[progress]") {
  ProgressFile file = ProgressFile::make(0).value();
  CHECK_FALSE(file.read().reports);
  const auto touch = [&](std::int64_t seconds) {
    const timespec times[2] = {{seconds, 0}, {seconds, 0}};
    REQUIRE(::utimensat(AT_FDCWD, file.path().c_str(), times, 0) == 0);
  };
  touch(2'000'000'000);
  CHECK(file.read().reports);
  CHECK(file.read().beats == 1);
  touch(2'000'000'007);
  CHECK(file.read().beats == 2);
  CHECK(file.read().longest == std::chrono::seconds(7));
}

TEST_CASE("Progress: what the sync timers of all groups of a worker count comes to the agent",
          "[progress]") {
  ProgressFile file = ProgressFile::make(0).value();
  CHECK(file.sync() == WorkerCounts());
  Progress first(file.path());
  Progress second(file.path());
  WorkerCounts some;  // A number of its own for each counter.
  std::iota(some.sums.values.begin(), some.sums.values.end(), 100);
  std::iota(some.late.values.begin(), some.late.values.end(), 200);
  first.count(some);
  CHECK(file.sync() == some);
  second.count({.sums = {{"steps", 2}, {"busbw", 7}}, .late = {{"forward_ns", 5}}});
  some.sums["steps"] += 2;
  some.sums["busbw"] = 7;  // Bandwidths are not added up.
  some.late["forward_ns"] += 5;
  CHECK(file.sync() == some);
  CHECK(file.fate().steps == 102);
}

// As `> $DDPRUN_PROGRESS` in a script does.
TEST_CASE("Progress: whoever cuts the file takes no memory from under the agent or the SDK",
          "[progress]") {
  ProgressFile file = ProgressFile::make(0).value();
  const auto cut = [&] { return ::truncate(file.path().c_str(), 0) == 0; };
  SECTION("before there is a page: it counts as a touch") {
    CHECK_FALSE(file.read().reports);
    REQUIRE(cut());
    CHECK(file.read().reports);
    file.notify_loss(1, "rank 1 exited with 3");
    CHECK_FALSE(Progress(file.path()).reports());
  }
  SECTION("afterwards it is refused") {
    const Progress page(file.path());
    REQUIRE(page.reports());
    CHECK_FALSE(cut());
    CHECK(file.read().reports);
  }
}

TEST_CASE("Progress: a page may hold anything", "[progress]") {
  std::mt19937_64 random(5);
  alignas(ProgressPage) unsigned char bytes[sizeof(ProgressPage)];
  for (int round = 0; round < 2000; ++round) {
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
    auto* page = reinterpret_cast<ProgressPage*>(bytes);
    page->magic.store(ProgressPage::kMagic);
    if (round % 2 == 0) page->slot.store(random() % (2 * ProgressPage::kSlots));
    (void)agent::read_sync(*page);
    const ProgressSample sample = agent::read_page(*page);
    CHECK(sample.reports == (page->slot.load() < ProgressPage::kSlots));
    if (!sample.reports) continue;
    CHECK(sample.phase.size() <= ProgressPage::kNameMax);
    for (const char c : sample.phase) CHECK((c >= ' ' && c <= '~'));
    CHECK(sample.longest >= Duration::zero());
    CHECK(20 * sample.longest >= sample.longest);  // It will be multiplied.
  }
}

TEST_CASE("Progress: what a worker has counted stays with the rank that it had", "[progress]") {
  boost::asio::io_context loop{1};
  agent::ProgressMonitor monitor(loop, {});
  const std::string page = monitor.prepare(0).substr(std::string("DDPRUN_PROGRESS=").size());
  monitor.started(0, /*rank=*/-1, ::getpid());  // Parked.
  CHECK_FALSE(monitor.unreported_sync());
  Progress progress(page);
  const WorkerCounts late{.sums = {}, .late = {{"steps", 1}}};
  monitor.seated(0, 5);
  progress.count(late);
  monitor.seated(0, 4);
  progress.count(late);
  progress.count(late);
  REQUIRE(monitor.unreported_sync());
  const std::vector<LateRank> expected{{.rank = 5, .counts = late.late},
                                       {.rank = 4, .counts = {{"steps", 2}}}};
  CHECK(monitor.unreported_sync()->late == expected);
  monitor.exited(0);
}

TEST_CASE("Progress: what a worker computes outlives it, unless it has said that it is done",
          "[progress]") {
  ProgressFile file = ProgressFile::make(0).value();
  const std::string endless(1000, 'x');
  {
    Progress progress(file.path());
    CHECK(file.fate().work.empty());
    progress.note_work("step 7, shard 3: sample 5", /*can_skip=*/true);
    CHECK(file.fate().work == "step 7, shard 3: sample 5");
    CHECK(file.fate().can_skip);
    progress.note_work("", /*can_skip=*/true);
    CHECK(file.fate().work.empty());
    CHECK_FALSE(file.fate().can_skip);
    progress.note_work(endless, /*can_skip=*/false);
  }
  CHECK(file.fate().work == endless.substr(0, ProgressPage::kWorkMax - 1));
  CHECK_FALSE(file.fate().can_skip);
}

}  // namespace
}  // namespace ddprun
