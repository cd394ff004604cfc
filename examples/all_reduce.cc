// How fast is all_reduce here? The table of nccl-tests, for every backend:
//
//   ddprun --nproc-per-node 2 all_reduce --backend shm -b 8 -e 128M
//
// algbw is the array's size by the time; busbw what the slowest wire carries, by the definition of
// nccl-tests: algbw * 2 * (n - 1) / n.

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "ddprun/ddprun.h"

namespace {

using Clock = std::chrono::steady_clock;

struct Options {
  std::string backend = "auto";
  std::size_t begin = 8, end = 32 << 20, factor = 2;
  int warmup = 5, iterations = 20;
};

// "128M", "4K", "8"; 0: none of these.
std::size_t bytes_of(std::string_view text) {
  std::size_t value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  const std::string_view unit(rest, static_cast<std::size_t>(text.data() + text.size() - rest));
  if (error != std::errc() || value > std::size_t{1} << 40) return 0;
  if (unit.empty()) return value;
  constexpr std::string_view kUnits = "KMG";
  const std::size_t at = kUnits.find(unit.front());
  return unit.size() == 1 && at != std::string_view::npos ? value << (10 * (at + 1)) : 0;
}

bool take(Options& options, const std::string& flag, const std::string& value) {
  if (flag == "--backend") return options.backend = value, true;
  const std::size_t number = bytes_of(value);
  if (number == 0) return false;
  if (flag == "-b" || flag == "--minbytes") return options.begin = number, true;
  if (flag == "-e" || flag == "--maxbytes") return options.end = number, true;
  if (flag == "-f" || flag == "--stepfactor") return options.factor = number, number > 1;
  if (flag == "-n" || flag == "--iters") return options.iterations = static_cast<int>(number), true;
  if (flag == "-w" || flag == "--warmup_iters") {
    return options.warmup = static_cast<int>(number), true;
  }
  return false;
}

// Sums of small integers, exact in f32.
std::size_t count_wrong(ddprun::ProcessGroup& group, const ddprun::Buffer& array) {
  std::vector<float> values(array.count, 1.0F);
  group.copy(array.data, values.data(), array.bytes());
  group.all_reduce(array);
  group.copy(values.data(), array.data, array.bytes());
  const auto want = static_cast<float>(group.world_size());
  std::int64_t wrong =
      std::count_if(values.begin(), values.end(), [&](float value) { return value != want; });
  group.all_reduce(ddprun::buffer(&wrong, 1), ddprun::ReduceOp::sum, {.on_host = true});
  return static_cast<std::size_t>(wrong);
}

// The time of one all_reduce, as the average of the ranks.
double seconds(ddprun::ProcessGroup& group, const ddprun::Buffer& array, const Options& options) {
  group.zero(array.data, array.bytes());
  for (int i = 0; i < options.warmup; ++i) group.all_reduce(array);
  group.barrier();
  const auto start = Clock::now();
  for (int i = 0; i < options.iterations; ++i) group.all_reduce(array);
  double time = std::chrono::duration<double>(Clock::now() - start).count() / options.iterations;
  group.all_reduce(ddprun::buffer(&time, 1), ddprun::ReduceOp::avg, {.on_host = true});
  return time;
}

void run(ddprun::ProcessGroup& group, const Options& options) {
  const bool prints = group.rank() == 0;
  const int n = group.world_size();
  if (prints) {
    std::printf("# backend %s, %d ranks\n", group.backend().c_str(), n);
    std::printf("# %10s %13s %9s %7s %9s %8s %8s %7s\n", "size", "count", "type", "redop", "time",
                "algbw", "busbw", "#wrong");
    std::printf("# %10s %13s %9s %7s %9s %8s %8s\n", "(B)", "(elements)", "", "", "(us)", "(GB/s)",
                "(GB/s)");
  }
  const auto memory = group.allocate(options.end);
  for (std::size_t size = options.begin; size <= options.end; size *= options.factor) {
    const ddprun::Buffer array{memory.get(), size / sizeof(float), ddprun::DataType::f32};
    const std::size_t wrong = count_wrong(group, array);
    const double time = seconds(group, array, options);
    const double algbw = static_cast<double>(array.bytes()) / time / 1e9;
    if (!prints) continue;
    std::printf("%12zu %13zu %9s %7s %9.2f %8.2f %8.2f %7zu\n", array.bytes(), array.count, "float",
                "sum", time * 1e6, algbw, algbw * 2 * (n - 1) / n, wrong);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 < argc && take(options, argv[i], argv[i + 1])) continue;
    std::fprintf(stderr,
                 "usage: %s [--backend B] [-b BYTES] [-e BYTES] [-f FACTOR] [-n ITERATIONS] "
                 "[-w WARMUP]; BYTES as 8, 4K, 128M, 1G\n",
                 argv[0]);
    return 2;
  }
  try {
    ddprun::InitOptions init;
    init.backend = options.backend;
    auto group = ddprun::ProcessGroup::init(init);
    run(group, options);
  } catch (const ddprun::Error& error) {
    std::fprintf(stderr, "all_reduce: %s\n", error.what());
    return 1;
  }
  return 0;
}
