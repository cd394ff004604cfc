// clip_grad_norm and GradScaler against PyTorch's (tests/golden/training.txt), and what PyTorch has
// no answer to: halves, parts of gradients on several ranks.

#include <catch2/catch.hpp>
#include <cmath>
#include <limits>

#include "ddprun/ddprun.h"
#include "tests/support/elements.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "worker_sdk/training/power_sgd_math.h"

namespace ddprun {
namespace {

using Catch::Matchers::Contains;
using test::outcome;
using test::Ranks;
using test::training_lines;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Relative, and equal if both are infinite or NaN.
bool close(double a, double b) {
  if (std::isnan(a) || std::isnan(b)) return std::isnan(a) && std::isnan(b);
  return a == b || std::abs(a - b) <= 1e-5 * std::max(std::abs(a), std::abs(b));
}

template <class T>
std::vector<Buffer> cut(std::vector<T>& values, const std::vector<std::size_t>& sizes) {
  std::vector<Buffer> result;
  T* at = values.data();
  for (const std::size_t size : sizes) {
    result.push_back(buffer(at, size));
    at += size;
  }
  return result;
}

template <class T>
void check_clip(const test::GoldenLine& line) {
  const auto sizes = line.numbers<std::size_t>(0);
  const auto want = line.numbers(2);
  std::vector<T> values(want.size());
  worker_sdk::draw_normal(std::stoull(line.words[0]), values.data(), values.size());
  const double norm = clip_grad_norm(cut(values, sizes), std::stod(line.words[2]),
                                     {.norm_type = std::stod(line.words[1])});
  CHECK(close(norm, line.numbers(1).at(0)));
  for (std::size_t i = 0; i < want.size(); ++i) CHECK(close(values[i], want[i]));
}

}  // namespace

TEST_CASE("Clip: norms and gradients are those of PyTorch's clip_grad_norm_") {
  const auto lines = training_lines("clip");
  REQUIRE(lines.size() == 60);
  for (const auto& line : lines) {
    INFO(line.text);
    line.words.at(3) == "f64" ? check_clip<double>(line) : check_clip<float>(line);
  }
}

TEST_CASE("Clip: halves are clipped too, rounded once") {
  for (const DataType type : {DataType::f16, DataType::bf16}) {
    std::vector<std::byte> bytes(20 * size_of(type));
    for (std::size_t i = 0; i < 20; ++i) test::put(type, bytes, i, i % 2 == 0 ? 3 : -4);
    const Buffer gradient{bytes.data(), 20, type};
    CHECK(clip_grad_norm(std::span(&gradient, 1), 1) == Approx(std::sqrt(250)));
    CHECK(test::get(type, bytes, 0) == Approx(3 / std::sqrt(250)).epsilon(0.005));
    CHECK(test::get(type, bytes, 19) == Approx(-4 / std::sqrt(250)).epsilon(0.005));
  }
}

TEST_CASE("Clip: what is not finite spoils the gradients as in PyTorch, or is refused") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  for (const double norm_type : {1.0, 2.0, 3.0, kInfinity}) {
    INFO(norm_type);
    std::vector<double> infinite{1, kInfinity, 2, 3, 4, 5, 6, 7, 8};
    std::vector<double> not_numbers{1, nan, 2, 3, 4, 5, 6, 7, 8};
    const Buffer a = buffer(infinite.data(), infinite.size());
    const Buffer b = buffer(not_numbers.data(), not_numbers.size());
    const ClipOptions strict{.norm_type = norm_type, .error_if_nonfinite = true};
    CHECK_THROWS_WITH(clip_grad_norm(std::span(&a, 1), 1, strict), Contains("is inf"));
    CHECK_THROWS_WITH(clip_grad_norm(std::span(&b, 1), 1, strict), Contains("nan"));
    CHECK(infinite[0] == 1);
    CHECK(std::isinf(clip_grad_norm(std::span(&a, 1), 1, {.norm_type = norm_type})));
    CHECK(infinite[0] == 0);
    CHECK(std::isnan(infinite[1]));
    CHECK(std::isnan(clip_grad_norm(std::span(&b, 1), 1, {.norm_type = norm_type})));
    CHECK(std::isnan(not_numbers[8]));
  }
}

TEST_CASE("Clip: nothing, integers and norms that are none") {
  CHECK(clip_grad_norm(std::span<const Buffer>(), 1) == 0);
  std::vector<std::int64_t> integers{1, 2};
  const Buffer wrong = buffer(integers.data(), 2);
  CHECK_THROWS_WITH(clip_grad_norm(std::span(&wrong, 1), 1), Contains("type i64 has no norm"));
  CHECK_THROWS_WITH(clip_grad_norm(std::span<const Buffer>(), 1, {.norm_type = 0}),
                    Contains("norm_type is 0"));
}

TEST_CASE("Clip: parts of the gradients on several ranks have the norm of the whole") {
  for (const double norm_type : {1.0, 2.0, kInfinity}) {
    std::vector<float> whole(30);
    worker_sdk::draw_normal(3, whole.data(), whole.size());
    const std::vector<float> given = whole;
    const Buffer all = buffer(whole.data(), whole.size());
    const double norm = clip_grad_norm(std::span(&all, 1), 0.5, {.norm_type = norm_type});
    const auto errors = Ranks{.world_size = 3}.run([&](ProcessGroup& group) {
      std::vector<float> mine(given.begin() + 10 * group.rank(),
                              given.begin() + 10 * (group.rank() + 1));
      const Buffer part = buffer(mine.data(), mine.size());
      const double got = clip_grad_norm(group, std::span(&part, 1), 0.5, {.norm_type = norm_type});
      bool right = close(got, norm);
      for (std::size_t i = 0; i < 10; ++i) {
        right = right && close(mine[i], whole[10 * static_cast<std::size_t>(group.rank()) + i]);
      }
      if (!right) throw Error(ErrorKind::mismatch, {}, "another norm or gradient");
    });
    CHECK(outcome(errors) == "all well");
  }
}

TEST_CASE("GradScaler: the scale grows and backs off as PyTorch's") {
  const auto lines = training_lines("scale");
  REQUIRE(lines.size() == 40);
  for (const auto& line : lines) {
    INFO(line.text);
    GradScaler scaler({.init_scale = std::stod(line.words[0]),
                       .growth_factor = std::stod(line.words[1]),
                       .backoff_factor = std::stod(line.words[2]),
                       .growth_interval = std::stoi(line.words[3])});
    const auto found = line.numbers(0);
    const auto want = line.numbers(1);
    for (std::size_t i = 0; i < found.size(); ++i) {
      float gradient[] = {1, found[i] != 0 ? std::numeric_limits<float>::infinity() : 2};
      const Buffer g = buffer(gradient, 2);
      scaler.unscale(std::span(&g, 1));
      CHECK(scaler.may_step() == (found[i] == 0));
      scaler.update();
      CHECK(close(scaler.scale(), want[i]));
    }
  }
}

TEST_CASE("GradScaler: unscaled gradients are PyTorch's, overflow is noticed") {
  const auto lines = training_lines("unscale");
  REQUIRE(lines.size() == 20);
  for (const auto& line : lines) {
    INFO(line.text);
    GradScaler scaler({.init_scale = std::stod(line.words[0])});
    auto gradient = line.numbers<float>(0);
    const auto want = line.numbers<float>(1);
    const Buffer g = buffer(gradient.data(), gradient.size());
    scaler.unscale(std::span(&g, 1));
    for (std::size_t i = 0; i < want.size(); ++i) CHECK(close(gradient[i], want[i]));
    CHECK(scaler.may_step() == (line.numbers(2).at(0) == 0));
  }
}

TEST_CASE("GradScaler: misuse is named, disabled it does nothing, its state goes on") {
  float gradient[] = {8};
  const Buffer g = buffer(gradient, 1);
  GradScaler scaler({.init_scale = 4, .growth_interval = 2});
  CHECK_THROWS_WITH(scaler.update(), Contains("before any unscale()"));
  std::uint16_t half = 0;
  const Buffer f16{&half, 1, DataType::f16};
  CHECK_THROWS_WITH(scaler.unscale(std::span(&f16, 1)), Contains("type f16"));
  scaler.unscale(std::span(&g, 1));
  CHECK(gradient[0] == 2);
  scaler.update();
  GradScaler other({.growth_interval = 2});
  other.load(scaler.state());
  other.unscale(std::span(&g, 1));
  other.update();
  CHECK(other.scale() == 8);
  CHECK_THROWS_AS(other.load({.scale = 0}), Error);
  CHECK_THROWS_AS(other.set_scale(-1), Error);
  CHECK_THROWS_AS(GradScaler({.growth_factor = 1}), Error);
  CHECK_THROWS_AS(GradScaler({.backoff_factor = 1}), Error);

  GradScaler off({.enabled = false});
  gradient[0] = static_cast<float>(kInfinity);
  off.unscale(std::span(&g, 1));
  off.update();
  CHECK(off.scale() == 1);
  CHECK(off.may_step());
}

TEST_CASE("GradScaler: an overflow in one rank's part keeps all from stepping") {
  const auto errors = Ranks{.world_size = 3}.run([](ProcessGroup& group) {
    GradScaler scaler({.init_scale = 2});
    for (int step = 0; step < 3; ++step) {
      float gradient[] = {group.rank() == step ? std::numeric_limits<float>::infinity() : 1};
      const Buffer g = buffer(gradient, 1);
      scaler.unscale(group, std::span(&g, 1));
      if (scaler.may_step()) throw Error(ErrorKind::mismatch, {}, "would step");
      scaler.update();
    }
    if (scaler.scale() != 0.25) throw Error(ErrorKind::mismatch, {}, "another scale");
  });
  CHECK(outcome(errors) == "all well");
}

}  // namespace ddprun
