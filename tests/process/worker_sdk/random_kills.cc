// Kills one rank after the other at moments of chance, and checks whether every survivor learns
// which rank it was, how soon, and whether anything is left in /dev/shm.
//
//   random_kills [kills] [seed]
//
// ctest runs a few; figures in bench/RESULTS.md are of 1,000. Exits with 1 if anything was wrong.

#include <algorithm>
#include <cstdio>
#include <map>
#include <random>

#include "tests/support/forked_ranks.h"

namespace ddprun {
namespace {

using namespace std::chrono_literals;
using test::ForkedRanks;
using test::Ranks;
using test::Report;
using test::shared_memory_files;

constexpr int kRanks = 4;
constexpr int kStepsMax = 40;  // Rounds of operations before the victim reports that it is ready.

// Everything that has a middle, for ever.
void work(ProcessGroup& group, int steps, const std::function<void()>& ready) {
  auto memory = group.allocate(4 << 20);
  const Buffer direct{memory.get(), 1 << 20, DataType::f32};
  std::vector<float> whole(kRanks * 50000), part(50000);
  const Buffer all = buffer(whole.data(), whole.size()), one = buffer(part.data(), part.size());
  for (int i = 0;; ++i) {
    if (i == steps) ready();
    group.all_reduce(direct);
    group.all_reduce(all);
    group.reduce_scatter(all, one);
    group.all_gather(one, all);
    group.all_to_all(all, all);
    group.broadcast(all, i % kRanks);
    group.gather(one, group.rank() == i % kRanks ? all : Buffer{}, i % kRanks);
    group.scatter(group.rank() == i % kRanks ? all : Buffer{}, one, i % kRanks);
    float small = 1;
    group.all_reduce(buffer(&small, 1));
    group.barrier();
  }
}

struct Tally {
  std::vector<double> milliseconds;  // From the kill to the last survivor's report.
  int kills = 0;
  int wrong = 0;
};

// What is wrong with the report of a survivor; nothing if all is well.
std::string complaint_about(const Report& report, int victim) {
  if (!report.came) return "no report";
  if (!report.threw) return "returned";
  if (report.kind != ErrorKind::peer_lost || report.peer != victim) return report.text;
  const std::string name = "rank " + std::to_string(victim) + " on ";
  return report.text.find(name) == std::string::npos ? "not named: " + report.text : "";
}

void kill_one(const Ranks& world, int victim, int steps, Tally& tally) {
  ForkedRanks ranks(world, [&](ProcessGroup& group, const std::function<void()>& ready) {
    work(group, group.rank() == victim ? steps : -1, ready);
  });
  ++tally.kills;
  // Some in the middle of joining: joining_test checks the others' messages then.
  if (steps == 0) return ranks.signal(victim, SIGKILL);
  if (!ranks.wait_ready(victim)) {
    ++tally.wrong;
    std::printf("%s: rank %d ended before it was killed\n", world.backend.c_str(), victim);
    return;
  }
  const auto killed = std::chrono::steady_clock::now();
  ranks.signal(victim, SIGKILL);
  for (int r = 0; r < kRanks; ++r) {
    if (r == victim) continue;
    const Report report = ranks.report(r);
    const std::string complaint = complaint_about(report, victim);
    if (complaint.empty()) continue;
    ++tally.wrong;
    std::printf("%s, victim %d, rank %d: %s\n", world.backend.c_str(), victim, r,
                complaint.c_str());
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - killed;
  tally.milliseconds.push_back(took.count());
}

int run(int kills, unsigned seed) {
  std::mt19937 random(seed);
  test::own_shared_memory();
  const auto files = shared_memory_files();
  std::map<std::string, Tally> tallies;
  for (int i = 0; i < kills; ++i) {
    const char* backend = (const char*[]){"shm", "gloo", "cpu"}[i % 3];
    const int victim = static_cast<int>(random() % kRanks);
    const int steps = random() % 8 == 0 ? 0 : 1 + static_cast<int>(random() % kStepsMax);
    kill_one({.world_size = kRanks, .backend = backend, .op_timeout = 50s}, victim, steps,
             tallies[backend]);
  }
  int wrong = 0;
  std::printf("from a SIGKILL to the last of %d survivors, ms\n%-8s %6s %6s %8s %8s %8s\n",
              kRanks - 1, "backend", "kills", "wrong", "median", "p95", "max");
  for (auto& [backend, tally] : tallies) {
    auto& ms = tally.milliseconds;
    std::sort(ms.begin(), ms.end());
    wrong += tally.wrong;
    if (ms.empty()) continue;
    std::printf("%-8s %6d %6d %8.1f %8.1f %8.1f\n", backend.c_str(), tally.kills, tally.wrong,
                ms[ms.size() / 2], ms[ms.size() * 95 / 100], ms.back());
  }
  const bool clean = shared_memory_files() == files;
  std::printf("/dev/shm is %s\n", clean ? "as before" : "NOT as before");
  return wrong == 0 && clean ? 0 : 1;
}

}  // namespace
}  // namespace ddprun

int main(int argc, char** argv) {
  const int kills = argc > 1 ? std::atoi(argv[1]) : 30;
  const unsigned seed = argc > 2 ? static_cast<unsigned>(std::atoi(argv[2])) : 1;
  return ddprun::run(kills, seed);
}
