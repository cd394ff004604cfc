// PowerSGD against PyTorch's (tests/golden/power_sgd.txt), over a real process group; once more on
// nccl by tests/gpu.cmake, where kernels compute.

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/support/worlds.h"
#include "worker_sdk/training/power_sgd_math.h"

namespace ddprun {
namespace {

using test::outcome;
using test::Ranks;

struct Case {
  hooks::PowerSgdOptions options;
  DataType type = DataType::f32;
  std::vector<std::vector<std::int64_t>> shapes;
  std::vector<std::vector<double>> averages;  // By step.
};

std::vector<std::vector<std::int64_t>> shapes_in(const std::string& text) {
  std::vector<std::vector<std::int64_t>> shapes(1);
  std::istringstream in(text);
  for (std::string word; in >> word;) {
    if (word == ";") {
      shapes.emplace_back();
    } else {
      shapes.back().push_back(std::stoll(word));
    }
  }
  return shapes;
}

Case header_in(const std::string& line) {
  Case c;
  std::istringstream in(line);
  std::string word, type;
  in >> word >> c.options.rank >> c.options.start_step >> c.options.min_compression_rate >>
      c.options.use_error_feedback >> c.options.warm_start >> c.options.orthogonalization_epsilon >>
      type;
  c.type = type == "f64" ? DataType::f64 : DataType::f32;
  c.shapes = shapes_in(line.substr(line.find(':') + 1));
  return c;
}

std::vector<Case> golden_cases() {
  std::ifstream file("tests/golden/power_sgd.txt");
  std::vector<Case> cases;
  for (std::string line; std::getline(file, line);) {
    if (line[0] == '#') continue;
    if (line.rfind("case", 0) == 0) {
      cases.push_back(header_in(line));
      continue;
    }
    std::istringstream in(line);
    cases.back().averages.emplace_back();
    for (double value = 0; in >> value;) cases.back().averages.back().push_back(value);
  }
  return cases;
}

std::size_t count_of(const std::vector<std::int64_t>& shape) {
  std::size_t count = 1;
  for (const auto extent : shape) count *= static_cast<std::size_t>(extent);
  return count;
}

// Our one bucket is filled from the last parameter to the first: given in reverse, it has PyTorch's
// order.
std::vector<Parameter> parameters_of(const Case& c, std::vector<std::vector<double>>& memory) {
  std::vector<Parameter> result;
  for (auto shape = c.shapes.rbegin(); shape != c.shapes.rend(); ++shape) {
    memory.emplace_back(count_of(*shape), 0.0);
    result.push_back({"", {memory.back().data(), count_of(*shape), c.type}, *shape});
  }
  return result;
}

template <class T>
double largest_difference(ProcessGroup& group, const Case& c, std::size_t number) {
  std::vector<std::vector<double>> memory;
  DdpOptions options;
  options.hook = hooks::power_sgd(c.options);
  DistributedDataParallel ddp(group, parameters_of(c, memory), options);
  const std::size_t parameters = c.shapes.size();
  double worst = 0;
  for (std::size_t step = 0; step < c.averages.size(); ++step) {
    std::size_t total = c.averages[step].size();
    std::vector<T> mine(total);
    worker_sdk::draw_normal(1000 * number + 100 * static_cast<std::size_t>(group.rank()) + step,
                            mine.data(), total);
    ddp.begin_backward();
    std::size_t offset = 0;
    for (std::size_t i = parameters; i-- > 0;) {
      const Buffer g = ddp.gradient(i);
      std::copy_n(mine.begin() + static_cast<std::ptrdiff_t>(offset), g.count,
                  static_cast<T*>(g.data));
      offset += g.count;
      ddp.mark_ready(i);
    }
    ddp.finish_backward();
    offset = 0;
    for (std::size_t i = parameters; i-- > 0;) {
      const Buffer g = ddp.gradient(i);
      for (std::size_t k = 0; k < g.count; ++k) {
        const double difference =
            std::abs(static_cast<double>(static_cast<T*>(g.data)[k]) - c.averages[step][offset++]);
        if (!(difference <= worst)) worst = difference;  // Keeps a NaN.
      }
    }
  }
  return worst;
}

}  // namespace

TEST_CASE("PowerSGD: gradients are PyTorch's, step after step") {
  const auto cases = golden_cases();
  REQUIRE(cases.size() == 7);
  for (std::size_t number = 0; number < cases.size(); ++number) {
    const Case& c = cases[number];
    INFO("case " << number);
    REQUIRE(c.averages.size() == 5);
    std::vector<double> worst(2);
    const Ranks ranks{.world_size = 2, .backend = test::kAnyBackend};
    const auto errors = ranks.run([&](ProcessGroup& group) {
      worst[static_cast<std::size_t>(group.rank())] =
          c.type == DataType::f32 ? largest_difference<float>(group, c, number)
                                  : largest_difference<double>(group, c, number);
    });
    CHECK(outcome(errors) == "all well");
    CHECK(worst[0] < 1e-5);
    CHECK(worst[1] < 1e-5);
  }
}

TEST_CASE("PowerSGD: a matrix of the approximation's rank survives unchanged") {
  const worker_sdk::LowRankShape shape{6, 5, 2};
  std::vector<double> a(12), b(10), q(10), p(12), m(30), back(30);
  worker_sdk::draw_normal(1, a.data(), a.size());
  worker_sdk::draw_normal(2, b.data(), b.size());
  worker_sdk::draw_normal(3, q.data(), q.size());
  worker_sdk::expand(shape, a.data(), b.data(), m.data());
  worker_sdk::multiply(shape, m.data(), q.data(), p.data());
  worker_sdk::orthogonalize(p.data(), shape.rows, shape.rank, 0);
  worker_sdk::multiply_transposed(shape, m.data(), p.data(), q.data());
  worker_sdk::expand(shape, p.data(), q.data(), back.data());
  for (std::size_t i = 0; i < m.size(); ++i) CHECK(back[i] == Approx(m[i]).margin(1e-12));
}

TEST_CASE("PowerSGD: columns of zeros stay zero instead of becoming NaN") {
  std::vector<float> zeros(8, 0);
  worker_sdk::orthogonalize(zeros.data(), 4, 2, 0);
  CHECK(zeros == std::vector<float>(8, 0));
}

TEST_CASE("PowerSGD: a rank that cannot be is refused") {
  CHECK_THROWS_WITH(hooks::power_sgd({.rank = 0}), Catch::Matchers::Contains("rank must be"));
}

}  // namespace ddprun
