// PowerSGD's kernels against power_sgd_math.h, on matrices of more than one block. See
// gpu_kernels_test.cc for where they run.

#include <catch2/catch.hpp>
#include <cmath>

#include "tests/support/card.h"
#include "worker_sdk/training/power_sgd_math.h"

namespace ddprun::worker_sdk {
namespace {

using test::Card;

// More rows than a grid has blocks, more columns than a tile, fewer than a slice, one of each.
const std::vector<LowRankShape> kShapes{{300, 700, 8}, {3, 1000, 3}, {2100, 5, 4},
                                        {40, 33, 1},   {1, 1, 1},    {64, 32, 2}};

template <class T>
struct Host {
  std::vector<T> gradient, error, p, q;
};

template <class T>
Host<T> numbers_for(const LowRankShape& shape, std::uint64_t seed) {
  Host<T> h{.gradient = std::vector<T>(shape.rows * shape.columns),
            .error = std::vector<T>(shape.rows * shape.columns),
            .p = std::vector<T>(shape.rows * shape.rank),
            .q = std::vector<T>(shape.columns * shape.rank)};
  draw_normal(seed, h.gradient.data(), h.gradient.size());
  draw_normal(seed + 1, h.error.data(), h.error.size());
  draw_normal(seed + 2, h.q.data(), h.q.size());
  return h;
}

// A step as power_sgd.cc takes it, of one rank.
template <class T>
void step_on_host(const LowRankShape& shape, Host<T>& h) {
  for (std::size_t i = 0; i < h.error.size(); ++i) h.error[i] = h.gradient[i] += h.error[i];
  orthogonalize(h.q.data(), shape.columns, shape.rank, 1e-8);
  multiply(shape, h.gradient.data(), h.q.data(), h.p.data());
  orthogonalize(h.p.data(), shape.rows, shape.rank, 1e-8);
  multiply_transposed(shape, h.gradient.data(), h.p.data(), h.q.data());
  expand(shape, h.p.data(), h.q.data(), h.gradient.data());
  for (std::size_t i = 0; i < h.error.size(); ++i) h.error[i] -= h.gradient[i];
}

struct Arrays {
  std::shared_ptr<void> gradient, error, p, q;
};

template <class T>
void step_on_card(Card& card, const std::vector<Arrays>& arrays) {
  std::vector<kernels::LowRank> table;
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    const Arrays& a = arrays[i];
    table.push_back({a.gradient.get(), a.error.get(), a.p.get(), a.q.get(), kShapes[i].rows,
                     kShapes[i].columns, static_cast<unsigned>(kShapes[i].rank)});
  }
  const auto memory = card.array(table);
  void* const entries = memory.get();
  const auto count = static_cast<unsigned>(table.size());
  const int of_type = sizeof(T) == 4 ? 0 : 1;
  const auto kernel = [&](GpuKernel f32) {
    return static_cast<GpuKernel>(static_cast<int>(f32) + of_type);
  };
  const GpuKernel orthogonalize = kernel(GpuKernel::orthogonalize_f32);
  // Fewer blocks than there is work for, so that they go round.
  const GpuKernels::Grid grid = GpuKernels::grid_for(kernels::kThreads * 7, 2);
  const auto& k = card.kernels();
  const GpuKernels::Grid block_each = GpuKernels::grid_for(1, 2);
  k.launch(orthogonalize, block_each, nullptr, entries, count, 1, 1e-8);
  k.launch(kernel(GpuKernel::multiply_f32), grid, nullptr, entries, count);
  k.launch(orthogonalize, block_each, nullptr, entries, count, 0, 1e-8);
  k.launch(kernel(GpuKernel::multiply_transposed_f32), grid, nullptr, entries, count);
  k.launch(kernel(GpuKernel::expand_f32), grid, nullptr, entries, count);
  card.wait();  // The table is read until then.
}

template <class T>
double difference(Card& card, const std::shared_ptr<void>& memory, const std::vector<T>& want) {
  const std::vector<T> got = card.read<T>(memory, want.size());
  double worst = 0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    const double d = std::abs(static_cast<double>(got[i]) - static_cast<double>(want[i]));
    if (!(d <= worst)) worst = d;  // Keeps a NaN.
  }
  return worst;
}

template <class T>
void compare(double tolerance) {
  Card card;
  std::vector<Host<T>> hosts;
  std::vector<Arrays> arrays;
  for (const LowRankShape& shape : kShapes) {
    Host<T> h = numbers_for<T>(shape, 100 * hosts.size());
    arrays.push_back(
        {card.array(h.gradient), card.array(h.error), card.array(h.p), card.array(h.q)});
    step_on_host(shape, h);
    hosts.push_back(std::move(h));
  }
  step_on_card<T>(card, arrays);
  for (std::size_t i = 0; i < kShapes.size(); ++i) {
    INFO("matrix " << i << " of " << sizeof(T) << " bytes an element");
    CHECK(difference(card, arrays[i].p, hosts[i].p) < tolerance);
    CHECK(difference(card, arrays[i].q, hosts[i].q) < tolerance);
    CHECK(difference(card, arrays[i].gradient, hosts[i].gradient) < tolerance);
    CHECK(difference(card, arrays[i].error, hosts[i].error) < tolerance);
  }
}

TEST_CASE("GPU kernels: a step of PowerSGD is the host's", "[nccl]") {
  compare<float>(1e-4);
  compare<double>(1e-11);
}

template <class T>
void compare_draw(GpuKernel kernel, double tolerance) {
  Card card;
  const std::size_t counts[] = {1, 2, 3, 5000};
  for (const std::size_t count : counts) {
    const auto memory = card.array(std::vector<T>(count + 1, 42));
    const GpuKernels::Grid grid = GpuKernels::grid_for(1000);
    card.kernels().launch(kernel, grid, nullptr, memory.get(), count, std::uint64_t{77});
    std::vector<T> want(count + 1, 42);
    draw_normal(77, want.data(), count);
    CHECK(difference(card, memory, want) <= tolerance);
  }
}

TEST_CASE("GPU kernels: the first factors are the host's", "[nccl]") {
  compare_draw<float>(GpuKernel::draw_normal_f32, 1e-6);
  compare_draw<double>(GpuKernel::draw_normal_f64, 1e-14);
}

TEST_CASE("GPU kernels: small arrays are gathered into a large one and scattered", "[nccl]") {
  Card card;
  std::vector<std::shared_ptr<void>> small;
  std::vector<kernels::Piece> table;
  const auto large = card.array(std::vector<float>(10001, -1));
  std::size_t offset = 0;
  const std::size_t counts[] = {1, 5000, 0, 999, 4000};
  for (const std::size_t count : counts) {
    small.push_back(card.array(std::vector<float>(count, static_cast<float>(count))));
    table.push_back({small.back().get(), static_cast<float*>(large.get()) + offset, count});
    offset += count;
  }
  const auto entries = card.array(table);
  const GpuKernels::Grid grid = GpuKernels::grid_for(1000, 2);
  const auto n = static_cast<unsigned>(table.size());
  card.kernels().launch(GpuKernel::copy_pieces_f32, grid, nullptr, entries.get(), n, 0);
  std::vector<float> want{1};
  for (const std::size_t count : {5000U, 999U, 4000U}) {
    want.insert(want.end(), count, static_cast<float>(count));
  }
  want.push_back(-1);
  CHECK(card.read<float>(large, want.size()) == want);
  card.fill(large, want.size() * sizeof(float), 0);
  card.kernels().launch(GpuKernel::copy_pieces_f32, grid, nullptr, entries.get(), n, 1);
  CHECK(card.read<float>(small[1], 5000) == std::vector<float>(5000, 0));
  CHECK(card.read<float>(small[0], 1) == std::vector<float>(1, 0));
  CHECK(card.read<float>(small[3], 999) == std::vector<float>(999, 0));
}

}  // namespace
}  // namespace ddprun::worker_sdk
