// Is the sync timer right?
//
//   bench_sync_truth [rounds] [MiB of gradients] [ms of one of the 8 layers] [ranks] [load]
//
// Part 1, two ranks unless `ranks` is more. Backward computes either elsewhere (it waits, as the
// host of a GPU does), or on the host's cores, which the all_reduce then shares. Each round
// measures the same thing with synchronisation and without (no_sync), in turn:
//   step   one step that all ranks begin together,
//   run    8 steps in a row, whose ranks drift apart where nothing holds them together,
// and a bare all_reduce of the same buckets. The truth is what synchronisation makes the step
// longer: the median of the rounds' own differences, each the mean of all ranks. Beside it stands
// `exposed` as the timers report it, the mean of all ranks likewise. `load` processes compute
// beside.
//
// Part 2, three ranks: rank 2 stands still for 300 ms in one step; what the timer reports of it.

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <tuple>
#include <vector>

#include "bench/programs/ranks.h"
#include "ddprun/ddprun.h"

namespace {

using Clock = std::chrono::steady_clock;
using ddprun::ProcessGroup;

constexpr int kParameters = 8;
constexpr int kStallMs = 300;
constexpr int kRun = 8;
double layer_ms = 0.5;  // Of one layer's backward.

double ms(std::chrono::nanoseconds time) {
  return std::chrono::duration<double, std::milli>(time).count();
}

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const std::size_t half = values.size() / 2;
  return values.size() % 2 ? values[half] : (values[half - 1] + values[half]) / 2;
}

// One layer's backward.
void compute(bool on_host, double ms) {
  if (!on_host) {
    const timespec time{0, static_cast<long>(ms * 1e6)};
    ::ppoll(nullptr, 0, &time, nullptr);
    return;
  }
  const auto start = Clock::now();  // Until so much CPU time is used, not wall time.
  timespec from{}, now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &from);
  do {
    ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  } while (static_cast<double>(now.tv_sec - from.tv_sec) * 1e3 +
                   static_cast<double>(now.tv_nsec - from.tv_nsec) / 1e6 <
               ms &&
           ms_since(start) < 1000 * ms);
}

void step(ddprun::DistributedDataParallel& ddp, bool on_host) {
  ddp.begin_backward();
  for (std::size_t i = kParameters; i-- > 0;) {
    compute(on_host, layer_ms);
    ddp.mark_ready(i);
  }
  ddp.finish_backward();
}

// All ranks begin together; ms of each of `steps` steps.
double run(ProcessGroup& group, int steps, const std::function<void()>& body) {
  group.barrier();
  const auto start = Clock::now();
  for (int s = 0; s < steps; ++s) body();
  return ms_since(start) / steps;
}

// Of one step, in ms.
enum Value { kLocal, kSync, kDifference, kBare, kExposed, kContended, kOverlapped, kValues };
using Round = std::array<double, kValues>;

Round measure_round(ProcessGroup& group, ddprun::DistributedDataParallel& ddp, ddprun::Buffer whole,
                    bool on_host, int steps, bool sync_first) {
  Round r{};
  const auto run_local = [&] {
    const auto guard = ddp.no_sync();
    r[kLocal] = run(group, steps, [&] { step(ddp, on_host); });
  };
  if (!sync_first) run_local();
  const ddprun::SyncReport before = ddp.total();
  r[kSync] = run(group, steps, [&] { step(ddp, on_host); });
  const ddprun::SyncReport after = ddp.total();
  if (sync_first) run_local();
  r[kDifference] = r[kSync] - r[kLocal];
  r[kBare] = run(group, 1, [&] { group.all_reduce(whole, ddprun::ReduceOp::avg); });
  r[kExposed] = ms(after.exposed - before.exposed) / steps;
  r[kContended] = ms(after.contended - before.contended) / steps;
  r[kOverlapped] = ms(after.overlapped() - before.overlapped()) / steps;
  return r;
}

// The means of all ranks, round by round.
std::vector<Round> measure(ProcessGroup& group, std::size_t floats, bool on_host, int steps,
                           int rounds) {
  std::vector<std::vector<float>> values(kParameters, std::vector<float>(floats / kParameters));
  std::vector<ddprun::Parameter> parameters;
  for (auto& v : values) {
    parameters.push_back({"", ddprun::buffer(v.data(), v.size()), {std::int64_t(v.size())}});
  }
  ddprun::DistributedDataParallel ddp(group, parameters,
                                      {.first_bucket_bytes = 1 << 20, .bucket_bytes = 6 << 20});
  auto flat = group.allocate(floats * sizeof(float));
  const auto whole = ddprun::buffer(static_cast<float*>(flat.get()), floats);
  std::vector<Round> result;
  for (int round = -3; round < rounds; ++round) {
    const Round r = measure_round(group, ddp, whole, on_host, steps, round % 2 != 0);
    if (round >= 0) result.push_back(r);
  }
  for (Round& r : result)
    group.all_reduce(ddprun::buffer(r.data(), r.size()), ddprun::ReduceOp::avg);
  return result;
}

double median_of(const std::vector<Round>& rounds, Value value) {
  std::vector<double> values;
  for (const Round& r : rounds) values.push_back(r[value]);
  return median(std::move(values));
}

void part_one(const std::string& directory, int rank, int ranks, int rounds, std::size_t floats) {
  auto group = bench::join(directory, "truth", "auto", rank, ranks);
  if (rank == 0) {
    std::printf(
        "%-15s %9s %9s %11s %9s %10s %8s %11s %10s   ms, medians of %d rounds, %d ranks, %s\n",
        "compute", "no_sync", "sync", "difference", "exposed", "contended", "ratio", "overlapped",
        "bare", rounds, ranks, group.backend().c_str());
  }
  for (const auto& [name, on_host, steps] :
       {std::tuple("elsewhere step", false, 1), std::tuple("host step", true, 1),
        std::tuple("elsewhere run", false, kRun), std::tuple("host run", true, kRun)}) {
    const auto t = measure(group, floats, on_host, steps, steps == 1 ? rounds : rounds / 2);
    if (rank != 0) continue;
    const double difference = median_of(t, kDifference);
    std::printf("%-15s %9.3f %9.3f %11.3f %9.3f %10.3f %8.3f %11.3f %10.3f\n", name,
                median_of(t, kLocal), median_of(t, kSync), difference, median_of(t, kExposed),
                median_of(t, kContended), median_of(t, kExposed) / difference,
                median_of(t, kOverlapped), median_of(t, kBare));
    std::fflush(stdout);
  }
}

void part_two(const std::string& directory, int rank, int rounds) {
  auto group = bench::join(directory, "stall", "auto", rank, 3);
  std::vector<float> values(kParameters * 1024);
  std::vector<ddprun::Parameter> parameters;
  for (std::size_t i = 0; i < kParameters; ++i) {
    parameters.push_back({"", ddprun::buffer(values.data() + i * 1024, 1024), {1024}});
  }
  ddprun::DdpOptions options;
  options.timer.window = 8;
  ddprun::DistributedDataParallel ddp(group, parameters, options);
  std::vector<double> late;
  int right = 0;
  ddp.on_window([&](const ddprun::SyncWindow& w) {
    if (!w.straggler) return;
    late.push_back(static_cast<double>(w.straggler->worst.count()) / 1e6);
    right += w.straggler->rank == 2 && w.straggler->phase == ddprun::StepPhase::forward;
  });
  for (int s = 0; s <= rounds * 8; ++s) {
    ddp.begin_forward();
    if (s % 8 == 5 && rank == 2) compute(false, kStallMs);
    step(ddp, false);
  }
  if (rank != 0) return;
  std::printf(
      "\nstall of %d ms in rank 2's forward: %d windows, blamed on rank 2 and forward in %d; "
      "reported %.1f ms [%.1f-%.1f]\n",
      kStallMs, rounds, right, median(late), *std::min_element(late.begin(), late.end()),
      *std::max_element(late.begin(), late.end()));
}

// Processes that compute for as long as it lives.
class Load {
 public:
  explicit Load(int processes) {
    for (int i = 0; i < processes; ++i) {
      const pid_t child = ::fork();
      if (child > 0) children_.push_back(child);
      if (child != 0) continue;
      ::prctl(PR_SET_PDEATHSIG, SIGKILL);
      for (std::atomic<unsigned> n = 0;;) ++n;
    }
  }
  ~Load() {
    for (const pid_t child : children_) ::kill(child, SIGKILL), ::waitpid(child, nullptr, 0);
  }

 private:
  std::vector<pid_t> children_;
};

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int at, double usual) {
    return argc > at ? std::atof(argv[at]) : usual;
  };
  const int rounds = static_cast<int>(argument(1, 60));
  const auto mib = static_cast<std::size_t>(argument(2, 24));
  layer_ms = argument(3, layer_ms);
  const int ranks = static_cast<int>(argument(4, 2));
  bool well = true;
  {
    const Load load(static_cast<int>(argument(5, 0)));
    well &= bench::run_ranks(ranks, [&](const std::string& directory, int rank) {
      part_one(directory, rank, ranks, rounds, (mib << 20) / sizeof(float));
    });
  }
  well &= bench::run_ranks(
      3, [&](const std::string& directory, int rank) { part_two(directory, rank, 10); });
  return well ? 0 : 1;
}
