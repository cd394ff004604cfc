// The sync timer inside DistributedDataParallel: windows that all ranks agree about, files, and the
// summary for `ddprun --report`.

#include <poll.h>

#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/model.h"
#include "tests/support/ranks.h"
#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/timer/run_summary.h"
#include "worker_sdk/worker/progress.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using namespace test;

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace

// Blocking operations are carried out by the caller; its time is not meant.
TEST_CASE("Sync report: the CPU time of collectives has that of Gloo's thread in it") {
  for (const char* backend : {"gloo", "cpu", "shm"}) {
    INFO(backend);
    Complaints complaints;
    const auto errors = Ranks{.world_size = 3, .backend = backend}.run([&](ProcessGroup& group) {
      std::vector<float> values(1 << 18, 1);
      group.barrier();
      const auto before = worker_sdk::GroupInside::cpu_time(group);
      for (int i = 0; i < 8; ++i) group.all_reduce(buffer(values.data(), values.size()));
      const auto after = worker_sdk::GroupInside::cpu_time(group);
      const bool has_thread = group.backend() != "shm";
      complaints.unless(has_thread ? before > 0ns && after > before : after == 0ns, "CPU time");
    });
    CHECK(outcome(errors) == "all well");
    CHECK(complaints.text() == "none");
  }
}

TEST_CASE("Sync report: all ranks hear the same windows, and who stalled") {
  const test::TemporaryDirectory directory;
  Complaints complaints;
  std::vector<std::string> received(3);
  const auto errors = Ranks{.world_size = 3}.run([&](ProcessGroup& group) {
    Model model({30, 1000}, 0);
    DdpOptions options;
    options.timer = {
        .window = 5, .json_file = directory / "sync.jsonl", .trace_folder = directory / ""};
    DistributedDataParallel ddp(group, model.parameters(), options);
    std::string& mine = received[static_cast<std::size_t>(group.rank())];
    ddp.on_window([&](const SyncWindow& w) { mine += to_json(w); });
    for (int step = 0; step < 12; ++step) {
      ddp.begin_forward();
      if (step == 7 && group.rank() == 1) ::poll(nullptr, 0, 2000);  // It computes for long.
      pass(ddp, 2, 1);
    }
    const auto& w = ddp.last_window();
    complaints.unless(w && w->first_step == 5 && w->steps == 5, "window");
    complaints.unless(w->straggler && w->straggler->rank == 1 && w->straggler->step == 7 &&
                          w->straggler->phase == StepPhase::forward && w->straggler->worst > 1s,
                      "straggler");
    complaints.unless(ddp.total().exposed >= ddp.total().waited, "waited");
  });
  CHECK(outcome(errors) == "all well");
  CHECK(complaints.text() == "none");
  CHECK(received[0] == received[1]);
  CHECK(received[0] == received[2]);
  std::istringstream lines(contents(directory / "sync.jsonl"));
  int windows = 0;
  for (std::string line; std::getline(lines, line); ++windows) {
    CHECK(nlohmann::json::parse(line).at("first_step") == 5 * windows);
  }
  CHECK(windows == 2);
  for (const char* rank : {"0", "1", "2"}) {
    const auto trace =
        nlohmann::json::parse(contents(directory / "trace.rank" + std::string(rank) + ".json"));
    CHECK(trace.at("traceEvents").size() > 12);
  }
}

// The summary of rank 0 of two, of which the other one is late in each of `steps` steps.
nlohmann::json summary_after(int steps) {
  const test::TemporaryDirectory directory;
  ::setenv("DDPRUN_REPORT_DIR", (directory / "").c_str(), 1);
  bool received_late = false;
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Model model({30, 1000}, 0);
    DdpOptions options;
    options.timer.window = 4;
    DistributedDataParallel ddp(group, model.parameters(), options);
    int received = 0;
    if (group.rank() == 0)
      ddp.on_window([&](const SyncWindow&) { received_late = ++received > 1; });
    for (int step = 0; step < steps; ++step) {
      ddp.begin_forward();
      if (group.rank() == 1) ::poll(nullptr, 0, 100);
      pass(ddp, 2, 1);
    }
  });
  ::unsetenv("DDPRUN_REPORT_DIR");
  CHECK(outcome(errors) == "all well");
  CHECK_FALSE(received_late);  // Not from the destructor.
  return nlohmann::json::parse(contents(directory / "rank0.json"));
}

TEST_CASE("Sync report: a window that is complete with the last step is part of the summary") {
  const auto whole = summary_after(8);
  CHECK(whole.at("window_steps") == 8);
  CHECK(whole.at("unknown_s") == 0);
  CHECK(whole.at("waiting_s").get<double>() > 0.05);
  REQUIRE(whole.at("late").size() >= 1);
  CHECK(whole.at("late")[0].at("rank") == 1);
  CHECK(whole.at("late")[0].at("phase") == "forward");

  const auto cut = summary_after(7);  // The waits of the last three are unknown.
  CHECK(cut.at("window_steps") == 4);
  CHECK(cut.at("unknown_s").get<double>() > 0.01);
}

TEST_CASE("Sync report: a trace is left when a collective fails") {
  const test::TemporaryDirectory directory;
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Model model({30}, 0);
    DdpOptions options;
    options.timer.trace_folder = directory / "";
    DistributedDataParallel ddp(group, model.parameters(), options);
    pass(ddp, 1, 1);
    group.barrier();
    group.abort();
    try {
      pass(ddp, 1, 1);
    } catch (const Error&) {
      const auto path = directory / "trace.rank" + std::to_string(group.rank()) + ".json";
      if (contents(path).empty()) throw Error(ErrorKind::mismatch, {}, "no trace");
      return;
    }
    throw Error(ErrorKind::mismatch, {}, "no failure");
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Sync report: the parts of a rank's summary are all of its time") {
  const LateRank late{
      2, {{"steps", 3}, {"forward_ns", 1'000'000'000}, {"backward_ns", 2'000'000'000}}};
  const worker_sdk::RunSummary summary{.startup = 2s,
                                       .rest = 1s,
                                       .steps = {.steps = 7,
                                                 .exposed = 5s,
                                                 .outside = 3s,
                                                 .forward = 4s,
                                                 .backward = 6s,
                                                 .waited = 2s,
                                                 .unknown = 1s,
                                                 .data = 1s,
                                                 .optimizer = 2s},
                                       .window_steps = 4,
                                       .late = {late}};
  const auto json = nlohmann::json::parse(
      worker_sdk::to_json(summary, {.rank = 3, .world_size = 8}, "node \"a\""));
  CHECK(json.at("rank") == 3);
  CHECK(json.at("host") == "node \"a\"");
  double sum = 0;
  for (const auto& [key, value] : json.items()) {
    if (key.size() > 2 && key.substr(key.size() - 2) == "_s") sum += value.get<double>();
  }
  CHECK(sum == 24);
  CHECK(json.at("waiting_s") == 2);
  CHECK(json.at("transfer_s") == 2);
  CHECK(json.at("unknown_s") == 1);
  CHECK(json.at("late")[0].at("late_s") == 3);
  CHECK(json.at("late")[0].at("phase") == "backward");
}

TEST_CASE("Sync report: the age of this process is known and grows") {
  const auto before = worker_sdk::process_age();
  CHECK(before > 0ns);
  CHECK(before < 24h);
  ::poll(nullptr, 0, 30);
  CHECK(worker_sdk::process_age() >= before + 20ms);
}

}  // namespace ddprun
