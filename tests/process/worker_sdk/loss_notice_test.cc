// The agent's notice of a lost rank ends the operations of all others, whatever they wait for: here
// the lost rank is stopped, so that no connection ends, and deadlines are far away.

#include <catch2/catch.hpp>
#include <fstream>
#include <optional>

#include "agent/health/progress_files.h"
#include "tests/support/forked_ranks.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using test::Ranks;
using test::Report;

constexpr auto kFarDeadline = 50s;
constexpr int kLost = 1;

using Wait = void (*)(ProcessGroup& group);

struct Waiting {
  const char* what;
  Wait wait;
};

void reduce(ProcessGroup& group) {
  std::vector<float> values(300000, 1);
  group.all_reduce(buffer(values.data(), values.size()));
}

// Each rank waits for one that is alive, and waits itself.
void receive_from_next(ProcessGroup& group, int tag) {
  float value = 0;
  const int ranks = group.world_size();
  int next = (group.rank() + 1) % ranks;
  if (next == kLost) next = (next + 1) % ranks;
  group.recv(buffer(&value, 1), next, {.tag = tag});
}

// The two ranks of such a message have not met before; the second one begins after the word.
void receive_with_tags(ProcessGroup& group) {
  try {
    receive_from_next(group, 1);
  } catch (const Error& error) {
    const bool at_once = error.where().waited < kFarDeadline / 2;
    if (error.kind() != ErrorKind::peer_lost || !at_once) throw;
    receive_from_next(group, 2);
  }
}

const Waiting kWaits[] = {
    {"all_reduce", reduce},
    {"barrier", [](ProcessGroup& group) { group.barrier(); }},
    {"broadcast from the lost rank",
     [](ProcessGroup& group) {
       float value = 0;
       group.broadcast(buffer(&value, 1), kLost);
       reduce(group);
     }},
    {"recv from a rank that lives", [](ProcessGroup& group) { receive_from_next(group, -1); }},
    {"recv with a tag", receive_with_tags},
    {"send without a taker",
     [](ProcessGroup& group) {
       std::vector<float> values(4 << 20);
       const int to = group.rank() == 0 ? 2 : 0;
       for (;;) group.send(buffer(values.data(), values.size()), to);
     }},
    {"asynchronous",
     [](ProcessGroup& group) {
       float value = 0;
       group.all_reduce_async(buffer(&value, 1)).wait();
     }},
};

// Three ranks; the agent of each speaks through a page of its own.
class Job {
 public:
  Job(const char* backend, Wait wait)
      : ranks_(
            3,
            [this, backend](int rank) {
              ::setenv("DDPRUN_PROGRESS", pages_[static_cast<std::size_t>(rank)].path().c_str(), 1);
              return Ranks{.world_size = 3, .backend = backend, .op_timeout = kFarDeadline}.options(
                  directory_ / "store", rank);
            },
            [wait](ProcessGroup& group, const auto& ready) {
              reduce(group);
              ready();
              if (group.rank() == kLost) ::raise(SIGSTOP);
              wait(group);
            }) {}

  void lose() {
    for (const int r : {0, 1, 2}) REQUIRE(ranks_.wait_ready(r));
    for (auto& page : pages_) page.notify_loss(kLost, "its node was lost");
  }
  Report report(int rank) { return ranks_.report(rank); }

 private:
  static std::vector<agent::ProgressFile> make_pages() {
    std::vector<agent::ProgressFile> pages;
    for (int r = 0; r < 3; ++r) pages.push_back(agent::ProgressFile::make(r).value());
    return pages;
  }
  std::vector<agent::ProgressFile> pages_ = make_pages();
  test::TemporaryDirectory directory_;
  test::ForkedRanks ranks_;
};

TEST_CASE("Agent's word: whoever waits is told at once, whatever it waits for", "[death]") {
  test::own_shared_memory();
  for (const char* backend : {"shm", "gloo", "cpu"}) {
    for (const auto& [what, wait] : kWaits) {
      INFO(backend << ", " << what);
      Job job(backend, wait);
      job.lose();
      for (const int r : {0, 2}) {
        const Report report = job.report(r);
        INFO(report.text);
        CHECK(report.threw);
        CHECK(report.kind == ErrorKind::peer_lost);
        CHECK(report.peer == kLost);
        CHECK(report.waited < kFarDeadline / 2);
      }
    }
  }
}

}  // namespace
}  // namespace ddprun
