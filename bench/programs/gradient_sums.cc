// What do sums of gradients cost if their bits do not depend on the ranks? GradientSums in its two
// kinds, exact and plain, on one host through shared memory.
//
//   bench_gradient_sums [ranks] [shards of a rank] [millions of elements] [rounds] [KiB a bucket]
//
// Ranks are processes. The two kinds take turns; each turn is one step: begin(), an add() for each
// shard, reduce(). Prints medians over rounds of the slowest rank, in nanoseconds an element, and
// the ratio of neighbouring turns.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "bench/programs/ranks.h"
#include "ddprun/ddprun.h"

namespace {

using Clock = std::chrono::steady_clock;

// Sizes as of a network: some large tensors, some of a few elements.
std::vector<std::size_t> sizes_of(std::size_t elements) {
  std::vector<std::size_t> sizes;
  for (std::size_t left = elements; left > 0;) {
    const std::size_t size = std::min(left, sizes.size() % 2 == 0 ? elements / 16 + 1 : 256);
    sizes.push_back(size);
    left -= size;
  }
  return sizes;
}

struct Times {
  double first = 0, further = 0, reduce = 0;  // Of a shard's add() the first and all further ones.
  double step() const { return first + further + reduce; }
};

class Contestant {
 public:
  Contestant(ddprun::ProcessGroup& group, const std::vector<std::size_t>& sizes,
             const ddprun::GradientSumOptions& options)
      : group_(group), sums_(sizes, options) {
    sums_.use(group);
    for (const std::size_t size : sizes) {
      gradients_.emplace_back(size);
      out_.emplace_back(size);
      for (float& x : gradients_.back()) x = random_.uniform() - 0.5f;
    }
  }

  // The slowest rank's, equal on all ranks.
  Times step(int shards) {
    using Kind = ddprun::GradientSums::Kind;
    const std::vector<std::span<const float>> in(gradients_.begin(), gradients_.end());
    const std::vector<std::span<float>> out(out_.begin(), out_.end());
    group_.barrier();
    group_.barrier();
    const auto start = Clock::now();
    sums_.begin();
    sums_.add(in);
    const auto first = Clock::now();
    for (int shard = 1; shard < shards; ++shard) sums_.add(in);
    const auto added = Clock::now();
    if (sums_.reduce(group_, out).kind == Kind::good) sums_.commit();
    const auto end = Clock::now();
    double seconds[] = {std::chrono::duration<double>(first - start).count(),
                        std::chrono::duration<double>(added - first).count(),
                        std::chrono::duration<double>(end - added).count()};
    group_.all_reduce(ddprun::buffer(seconds, 3), ddprun::ReduceOp::max);
    return {seconds[0], seconds[1], seconds[2]};
  }

 private:
  ddprun::ProcessGroup& group_;
  ddprun::GradientSums sums_;
  ddprun::RandomStream random_{1};
  std::vector<std::vector<float>> gradients_, out_;
};

template <class Value>
double median(const std::vector<Times>& all, const Value& value) {
  std::vector<double> values;
  for (const Times& times : all) values.push_back(value(times));
  std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

void print(const char* name, const std::vector<Times>& all, std::size_t elements, int shards) {
  const double scale = 1e9 / static_cast<double>(elements);
  const auto first = median(all, [](const Times& t) { return t.first; }) * scale;
  const auto further = median(all, [](const Times& t) { return t.further; }) * scale;
  const auto reduce = median(all, [](const Times& t) { return t.reduce; }) * scale;
  const auto step = median(all, [](const Times& t) { return t.step(); }) * scale;
  std::printf("%-6s %10.2f %14.2f %8.2f %8.2f\n", name, first,
              shards > 1 ? further / (shards - 1) : 0.0, reduce, step);
}

struct Setting {
  int ranks = 0, shards = 0, rounds = 0;
  std::size_t elements = 0, bucket_bytes = 0;
};

void rank_main(const std::string& directory, int rank, const Setting& setting) {
  const auto& [ranks, shards, rounds, elements, bucket_bytes] = setting;
  auto group = bench::join(directory, "store", "shm", rank, ranks);
  const auto sizes = sizes_of(elements);
  Contestant exact(group, sizes, {.exact = true, .bucket_bytes = bucket_bytes}),
      plain(group, sizes, {.exact = false, .bucket_bytes = bucket_bytes});
  std::vector<Times> of_exact, of_plain;
  for (int round = -2; round < rounds; ++round) {
    const Times e = exact.step(shards), p = plain.step(shards);
    if (round < 0) continue;
    of_exact.push_back(e);
    of_plain.push_back(p);
  }
  if (rank != 0) return;
  std::printf("%d ranks, %d shards each, %zu elements, %d rounds; ns an element\n", ranks, shards,
              elements, rounds);
  std::printf("%-6s %10s %14s %8s %8s\n", "", "first add", "further add", "reduce", "step");
  print("exact", of_exact, elements, shards);
  print("plain", of_plain, elements, shards);
  std::vector<double> ratios;
  for (std::size_t i = 0; i < of_exact.size(); ++i) {
    ratios.push_back(of_exact[i].step() / of_plain[i].step());
  }
  std::sort(ratios.begin(), ratios.end());
  std::printf("exact / plain %.2f [%.2f-%.2f]\n", ratios[ratios.size() / 2], ratios.front(),
              ratios.back());
}

}  // namespace

int main(int argc, char** argv) {
  const auto argument = [&](int i, int otherwise) {
    return argc > i ? std::atoi(argv[i]) : otherwise;
  };
  const int millions = argument(3, 16), kib = argument(5, 4096);
  const Setting setting{
      .ranks = argument(1, 2),
      .shards = argument(2, 2),
      .rounds = argument(4, 21),
      .elements = static_cast<std::size_t>(millions) * 1'000'000,
      .bucket_bytes = static_cast<std::size_t>(kib) << 10,
  };
  if (setting.ranks < 1 || setting.shards < 1 || millions < 1 || setting.rounds < 1 || kib < 4) {
    std::fprintf(
        stderr,
        "usage: %s [ranks] [shards of a rank] [millions of elements] [rounds] [KiB a bucket]\n",
        argv[0]);
    return 2;
  }
  const bool well = bench::run_ranks(setting.ranks, [&](const std::string& directory, int rank) {
    rank_main(directory, rank, setting);
  });
  return well ? 0 : 1;
}
