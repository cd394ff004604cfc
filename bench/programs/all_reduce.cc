// How long does all_reduce take on one host: through our shared memory, with the arrays in memory
// from allocate() (direct) and in ordinary memory (staged); on our gloo backend; by Gloo itself;
// and how long would it take if only the bandwidth of memory counted? ("copy": each rank copies as
// many bytes as it has to read and to write in a direct all_reduce.)
//
//   bench_all_reduce [ranks] [seconds per size] [lines] [bind]
//   RANK=r bench_all_reduce RANKS SECONDS hosts DIRECTORY
//
// The second form is one rank of several hosts, for between_hosts.py: our cpu backend, our gloo
// backend and Gloo itself over the same network.
//
// All contenders run in the same processes, in turns of 50, 10 or, from 25 MiB on, 1 run, so that
// whatever else the machine does hits all of them, while none of them pays for what the one before
// it has thrown out of the caches, or for the CPUs that it has left the ranks on: MPI's programs
// are alone in theirs. Each run begins with two barriers (the first one wakes sleeping ranks), is
// timed on every rank, and counts as long as its slowest rank. Prints medians over runs, and the
// ratio to Gloo as the median of the ratios of neighbouring runs; with "lines", "name bytes
// microseconds" for all_reduce.py, which has other peers' programs take turns with this one.
// "bind": each rank has a CPU to itself.

#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>
#include <sched.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>

#include "bench/programs/ranks.h"
#include "ddprun/ddprun.h"

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kSizes[] = {4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20};
constexpr int kTurnsMin = 7;
constexpr int kTurnsMax = 300;
constexpr int kWarmUp = 2;
int runs_in_turn(std::size_t bytes) {
  if (bytes < (1 << 20)) return 50;
  return bytes < (25 << 20) ? 10 : 1;
}

struct Contender {
  const char* name;
  std::function<void(std::size_t count)> all_reduce;
};

std::shared_ptr<gloo::Context> join_gloo(const std::string& directory, int rank, int ranks) {
  gloo::transport::tcp::attr attributes;
  const char* interface = std::getenv("DDPRUN_SOCKET_IFNAME");
  attributes.hostname = "127.0.0.1";
  if (interface) attributes.iface = interface, attributes.hostname = "";
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
  gloo::rendezvous::FileStore store(directory);
  context->connectFullMesh(store, device);
  return context;
}

// The slowest rank's time of one run, equal on all ranks.
double run_once(ddprun::ProcessGroup& group, const Contender& contender, std::size_t count) {
  group.barrier();
  group.barrier();
  const auto start = Clock::now();
  contender.all_reduce(count);
  double seconds = std::chrono::duration<double>(Clock::now() - start).count();
  group.all_reduce(ddprun::buffer(&seconds, 1), ddprun::ReduceOp::max);
  return seconds;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void print_lines(std::size_t bytes, const std::vector<Contender>& contenders,
                 const std::vector<std::vector<double>>& times) {
  for (std::size_t c = 0; c < contenders.size(); ++c) {
    std::printf("%s\t%zu\t%.3f\n", contenders[c].name, bytes, median(times[c]) * 1e6);
  }
}

void print_row(std::size_t bytes, const std::vector<Contender>& contenders,
               const std::vector<std::vector<double>>& times) {
  std::printf("%9.0f KiB  %5zu", static_cast<double>(bytes) / 1024, times[0].size());
  for (std::size_t c = 0; c < contenders.size(); ++c) {
    std::vector<double> ratios;
    for (std::size_t i = 0; i < times[c].size(); ++i)
      ratios.push_back(times.back()[i] / times[c][i]);
    std::printf("  %10.1f (%5.1fx)", median(times[c]) * 1e6, median(ratios));
  }
  std::printf("\n");
  std::fflush(stdout);
}

// A turn of microseconds is over before the scheduler has parted ranks that the contender before
// left on one CPU; other programs' ranks are alone. So it begins some ticks later.
void settle(ddprun::ProcessGroup& group, const Contender& contender, std::size_t count) {
  constexpr std::chrono::milliseconds kTicks{12};
  const auto start = Clock::now();
  for (std::uint8_t enough = 0; enough == 0;) {
    run_once(group, contender, count);
    enough = Clock::now() - start > kTicks;
    group.broadcast(ddprun::buffer(&enough, 1), 0);
  }
}

void measure(ddprun::ProcessGroup& group, const std::vector<Contender>& contenders,
             std::size_t bytes, double seconds, bool lines) {
  const std::size_t count = bytes / sizeof(float);
  std::vector<std::vector<double>> times(contenders.size());
  const auto start = Clock::now();
  for (int turn = -kWarmUp; turn < kTurnsMax; ++turn) {
    // Rank 0's clock decides for all.
    std::uint8_t enough =
        turn >= kTurnsMin && std::chrono::duration<double>(Clock::now() - start).count() > seconds;
    group.broadcast(ddprun::buffer(&enough, 1), 0);
    if (enough) break;
    for (std::size_t c = 0; c < contenders.size(); ++c) {
      if (bytes < (1 << 20)) settle(group, contenders[c], count);
      for (int run = 0; run < runs_in_turn(bytes); ++run) {
        const double time = run_once(group, contenders[c], count);
        if (turn >= 0) times[c].push_back(time);
      }
    }
  }
  if (group.rank() == 0) (lines ? print_lines : print_row)(bytes, contenders, times);
}

void gloo_ring(const std::shared_ptr<gloo::Context>& context, float* data, std::size_t n) {
  gloo::AllreduceOptions options(context);
  options.setOutput(data, n);
  options.setReduceFunction(
      static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
  options.setAlgorithm(gloo::AllreduceOptions::Algorithm::RING);
  gloo::allreduce(options);
}

// One rank of several hosts.
void host_main(const std::string& directory, int rank, int ranks, double seconds) {
  auto cpu = bench::join(directory, "cpu", "cpu", rank, ranks);
  auto our_gloo = bench::join(directory, "gloo", "gloo", rank, ranks);
  auto context = join_gloo(directory, rank, ranks);
  constexpr std::size_t kMost = 25 << 20;
  auto shared = cpu.allocate(kMost);
  std::vector<float> own(kMost / sizeof(float));
  auto* direct = static_cast<float*>(shared.get());
  const std::vector<Contender> contenders = {
      {"cpu direct", [&](std::size_t n) { cpu.all_reduce(ddprun::buffer(direct, n)); }},
      {"cpu staged", [&](std::size_t n) { cpu.all_reduce(ddprun::buffer(own.data(), n)); }},
      {"our gloo", [&](std::size_t n) { our_gloo.all_reduce(ddprun::buffer(own.data(), n)); }},
      {"Gloo C++ ring", [&](std::size_t n) { gloo_ring(context, own.data(), n); }}};
  if (rank == 0) {
    std::printf(
        "all_reduce of f32, sum, %d ranks: median microseconds (x: as many times faster "
        "than the last column)\n%13s  %5s",
        ranks, "size", "runs");
    for (const Contender& contender : contenders) std::printf("  %19s", contender.name);
    std::printf("\n");
  }
  for (const std::size_t bytes :
       {std::size_t{4} << 10, std::size_t{64} << 10, std::size_t{1} << 20, kMost}) {
    measure(cpu, contenders, bytes, seconds, false);
  }
}

// As `mpirun --bind-to core` does.
void bind_to_a_cpu(int rank) {
  cpu_set_t all, one;
  CPU_ZERO(&one);
  if (::sched_getaffinity(0, sizeof(all), &all) != 0) return;
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(cpu, &all) && seen++ == rank) CPU_SET(cpu, &one);
  }
  ::sched_setaffinity(0, sizeof(one), &one);  // No effect on a rank without a CPU of its own.
}

void rank_main(const std::string& directory, int rank, int ranks, double seconds, bool lines) {
  auto shm = bench::join(directory, "shm", "shm", rank, ranks);
  auto our_gloo = bench::join(directory, "gloo", "gloo", rank, ranks);
  auto context = join_gloo(directory, rank, ranks);
  const std::size_t most = *std::max_element(std::begin(kSizes), std::end(kSizes));
  auto shared = shm.allocate(most);
  std::vector<float> own(most / sizeof(float)), copied(most / sizeof(float));
  auto* direct = static_cast<float*>(shared.get());
  const std::vector<Contender> contenders = {
      {"shm direct", [&](std::size_t n) { shm.all_reduce(ddprun::buffer(direct, n)); }},
      {"shm staged", [&](std::size_t n) { shm.all_reduce(ddprun::buffer(own.data(), n)); }},
      {"copy", [&](std::size_t n) { std::memcpy(copied.data(), own.data(), n * sizeof(float)); }},
      {"our gloo", [&](std::size_t n) { our_gloo.all_reduce(ddprun::buffer(own.data(), n)); }},
      {"Gloo C++ ring", [&](std::size_t n) { gloo_ring(context, own.data(), n); }}};
  if (rank == 0 && !lines) {
    std::printf(
        "all_reduce of f32, sum, %d ranks on one host: median microseconds (x: as many times "
        "faster than the last column)\n%13s  %5s",
        ranks, "size", "runs");
    for (const Contender& contender : contenders) std::printf("  %19s", contender.name);
    std::printf("\n");
  }
  for (const std::size_t bytes : kSizes) measure(shm, contenders, bytes, seconds, lines);
}

}  // namespace

int main(int argc, char** argv) {
  const int ranks = argc > 1 ? std::atoi(argv[1]) : 2;
  const double seconds = argc > 2 ? std::atof(argv[2]) : 3;
  const bool lines = argc > 3 && std::strcmp(argv[3], "lines") == 0;
  const bool bind = argc > 4 && std::strcmp(argv[4], "bind") == 0;
  if (ranks < 2 || seconds <= 0) {
    std::fprintf(stderr, "usage: %s [ranks, at least 2] [seconds per size]\n", argv[0]);
    return 2;
  }
  if (argc > 4 && std::getenv("RANK")) {
    host_main(argv[4], std::atoi(std::getenv("RANK")), ranks, seconds);
    return 0;
  }
  const bool well = bench::run_ranks(ranks, [&](const std::string& directory, int rank) {
    if (bind) bind_to_a_cpu(rank);
    rank_main(directory, rank, ranks, seconds, lines);
  });
  return well ? 0 : 1;
}
