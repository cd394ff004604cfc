// Does the sync timer tell the truth?
//
//   bench_sync_truth [rounds] [MiB of gradients] [ms of one of the 8 layers]
//
// Part 1, two ranks. Each round runs three things in turn: a step with synchronisation, one without
// (no_sync), and a bare all_reduce of the same buckets. The truth is what synchronisation makes the
// step longer: the median of the rounds' own differences. Beside it stands `exposed` as the timer
// reports it. Backward computes either elsewhere (it waits, as the host of a GPU does), or on the
// host's cores, which the all_reduce then shares.
//
// Part 2, three ranks: rank 2 stands still for 300 ms in one step; what the timer says of it.

#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "ddprun/ddprun.h"

namespace {

using Clock = std::chrono::steady_clock;
using ddprun::ProcessGroup;

constexpr int kParameters = 8;
constexpr int kStallMs = 300;
double layer_ms = 0.5;  // Of one layer's backward.

ProcessGroup join(const std::string& directory, const std::string& name, int rank, int ranks) {
  ddprun::InitOptions options;
  options.init_method = "file://" + directory + "/" + name;
  options.rank = rank;
  options.world_size = ranks;
  return ProcessGroup::init(options);
}

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

double step(ddprun::DistributedDataParallel& ddp, bool on_host) {
  const auto start = Clock::now();
  ddp.begin_backward();
  for (std::size_t i = kParameters; i-- > 0;) {
    compute(on_host, layer_ms);
    ddp.mark_ready(i);
  }
  ddp.finish_backward();
  return ms_since(start);
}

struct Truth {
  std::vector<double> local, synchronised, differences, bare, exposed, contended, overlapped;
};

// All ranks begin together.
double run(ProcessGroup& group, const std::function<double()>& body) {
  group.barrier();
  return body();
}

Truth measure(ProcessGroup& group, std::size_t floats, bool on_host, int rounds) {
  std::vector<std::vector<float>> values(kParameters, std::vector<float>(floats / kParameters));
  std::vector<ddprun::Parameter> parameters;
  for (auto& v : values) {
    parameters.push_back({"", ddprun::buffer(v.data(), v.size()), {std::int64_t(v.size())}});
  }
  ddprun::DistributedDataParallel ddp(group, parameters,
                                      {.first_bucket_bytes = 1 << 20, .bucket_bytes = 6 << 20});
  auto flat = group.allocate(floats * sizeof(float));
  const auto whole = ddprun::buffer(static_cast<float*>(flat.get()), floats);
  Truth t;
  for (int round = -3; round < rounds; ++round) {
    double local = 0, sync = 0;
    ddprun::SyncReport said;
    const auto run_local = [&] {
      const auto guard = ddp.no_sync();
      local = run(group, [&] { return step(ddp, on_host); });
    };
    const auto run_sync = [&] {
      sync = run(group, [&] { return step(ddp, on_host); });
      said = ddp.last_step();
    };
    if (round % 2 == 0) run_local();
    run_sync();
    if (round % 2 != 0) run_local();
    const auto bare = run(group, [&] {
      const auto start = Clock::now();
      group.all_reduce(whole, ddprun::ReduceOp::avg);
      return ms_since(start);
    });
    if (round < 0) continue;
    t.local.push_back(local);
    t.synchronised.push_back(sync);
    t.differences.push_back(sync - local);
    t.bare.push_back(bare);
    t.exposed.push_back(ms(said.exposed));
    t.contended.push_back(ms(said.contended));
    t.overlapped.push_back(ms(said.overlapped()));
  }
  return t;
}

void part_one(const std::string& directory, int rank, int rounds, std::size_t floats) {
  auto group = join(directory, "truth", rank, 2);
  if (rank == 0) {
    std::printf("%-10s %9s %9s %11s %9s %10s %8s %11s %10s   ms, medians of %d rounds, %s\n",
                "compute", "no_sync", "sync", "difference", "exposed", "contended", "ratio",
                "overlapped", "bare", rounds, group.backend().c_str());
  }
  for (const bool on_host : {false, true}) {
    const Truth t = measure(group, floats, on_host, rounds);
    if (rank != 0) continue;
    const double difference = median(t.differences);
    std::printf("%-10s %9.3f %9.3f %11.3f %9.3f %10.3f %8.3f %11.3f %10.3f\n",
                on_host ? "host" : "elsewhere", median(t.local), median(t.synchronised), difference,
                median(t.exposed), median(t.contended), median(t.exposed) / difference,
                median(t.overlapped), median(t.bare));
    std::fflush(stdout);
  }
}

void part_two(const std::string& directory, int rank, int rounds) {
  auto group = join(directory, "stall", rank, 3);
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
    late.push_back(static_cast<double>(w.straggler->late.count()) / 1e6);
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

int run_ranks(int ranks, const std::function<void(int)>& body) {
  for (int rank = 0; rank < ranks; ++rank) {
    if (::fork() != 0) continue;
    try {
      body(rank);
      std::fflush(stdout);
      ::_exit(0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      ::_exit(1);
    }
  }
  int failed = 0, status = 0;
  while (::wait(&status) > 0) failed |= status;
  return failed;
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 60;
  const std::size_t mib = argc > 2 ? static_cast<std::size_t>(std::atoi(argv[2])) : 24;
  if (argc > 3) layer_ms = std::atof(argv[3]);
  std::string directory = std::filesystem::temp_directory_path() / "ddprun_bench_XXXXXX";
  if (!::mkdtemp(directory.data())) return 1;
  int failed = run_ranks(
      2, [&](int rank) { part_one(directory, rank, rounds, (mib << 20) / sizeof(float)); });
  failed |= run_ranks(3, [&](int rank) { part_two(directory, rank, 10); });
  std::filesystem::remove_all(directory);
  return failed == 0 ? 0 : 1;
}
