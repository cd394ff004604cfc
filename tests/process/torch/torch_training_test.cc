// GradScaler, clip_grad_norm and ZeroRedundancyOptimizer of the libtorch adapter, against
// libtorch's own and against PyTorch (tests/golden/training.txt).

#include <torch/torch.h>
// libtorch has a CHECK of its own.
#undef CHECK
#include <catch2/catch.hpp>
#include <limits>
#include <sstream>

#include "ddprun/torch.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "worker_sdk/training/power_sgd_math.h"

namespace {

using ddprun::Error;
using ddprun::ProcessGroup;
using ddprun::test::GoldenLine;
using ddprun::test::outcome;
using ddprun::test::Ranks;
using ddprun::torch::ZeroRedundancyOptimizer;
using Tensors = std::vector<torch::Tensor>;

// Threads report through this, as Catch2 may not be used there.
void require(bool ok, const std::string& text) {
  if (!ok) throw Error(ddprun::ErrorKind::mismatch, {}, text);
}

Tensors draw(std::uint64_t seed, const std::vector<std::int64_t>& sizes) {
  std::int64_t total = 0;
  for (const auto size : sizes) total += size;
  std::vector<float> values(static_cast<std::size_t>(total));
  ddprun::worker_sdk::draw_normal(seed, values.data(), values.size());
  Tensors parts;
  const float* at = values.data();
  for (const auto size : sizes) {
    parts.push_back(torch::empty({size}));
    std::copy_n(at, size, parts.back().data_ptr<float>());
    at += size;
  }
  return parts;
}

Tensors parameters_of(const std::vector<std::int64_t>& sizes) {
  auto parameters = draw(1, sizes);
  for (auto& p : parameters) p.requires_grad_();
  return parameters;
}

template <class Optimizer>
void train(Tensors& parameters, Optimizer& optimizer, const std::vector<std::int64_t>& sizes,
           int from, int to) {
  for (int step = from; step < to; ++step) {
    const auto gradients = draw(static_cast<std::uint64_t>(100 + step), sizes);
    for (std::size_t i = 0; i < sizes.size(); ++i) parameters[i].mutable_grad() = gradients[i];
    optimizer.step();
  }
}

torch::Tensor flat(const Tensors& tensors) { return torch::cat(tensors).detach(); }

void require_close(const torch::Tensor& a, const torch::Tensor& b, const std::string& what) {
  require(torch::allclose(a, b, 1e-5, 1e-6),
          what + " differs by " + std::to_string((a - b).abs().max().item<double>()));
}

template <class Optimizer, class Options>
void check_golden(const GoldenLine& line, const Options& options) {
  const auto sizes = line.numbers<std::int64_t>(0);
  const auto want = torch::tensor(line.numbers<float>(1));
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    auto parameters = parameters_of(sizes);
    ZeroRedundancyOptimizer<Optimizer> zero(group, parameters, options);
    train(parameters, zero, sizes, 0, std::stoi(line.words[1]));
    require_close(flat(parameters), want, "a parameter");
    std::size_t states = zero.local().state().size();
    require(states <= zero.shares()[static_cast<std::size_t>(group.rank())].size(),
            "a rank keeps the state of others' parameters");
  });
  CHECK(outcome(errors) == "all well");
}

}  // namespace

TEST_CASE("ZeRO: two ranks train as PyTorch's ZeroRedundancyOptimizer does") {
  const auto lines = ddprun::test::training_lines("zero");
  REQUIRE(lines.size() == 9);
  for (const auto& line : lines) {
    INFO(line.text);
    if (line.words[0] == "adam") {
      check_golden<torch::optim::Adam>(line, torch::optim::AdamOptions(0.05).weight_decay(0.01));
    } else {
      const double momentum = line.words[0] == "momentum" ? 0.9 : 0;
      check_golden<torch::optim::SGD>(line, torch::optim::SGDOptions(0.1).momentum(momentum));
    }
  }
}

TEST_CASE("ZeRO: the consolidated state goes on in an ordinary optimizer, and on other worlds") {
  const std::vector<std::int64_t> sizes{12, 5, 30, 7, 7};
  const torch::optim::AdamOptions options(0.05);
  auto truth = parameters_of(sizes);
  torch::optim::Adam ordinary(truth, options);
  train(truth, ordinary, sizes, 0, 6);

  std::string state;
  Tensors values;
  const auto saved = Ranks{.world_size = 3}.run([&](ProcessGroup& group) {
    auto parameters = parameters_of(sizes);
    ZeroRedundancyOptimizer<torch::optim::Adam> zero(group, parameters, options);
    train(parameters, zero, sizes, 0, 3);
    const auto whole = zero.consolidate(1);
    require(whole.empty() == (group.rank() != 1), "the wrong rank has the state");
    if (group.rank() != 1) return;
    state = whole;
    for (const auto& p : parameters) values.push_back(p.detach().clone());
  });
  REQUIRE(outcome(saved) == "all well");

  const auto copy = [&] {
    Tensors result;
    for (const auto& v : values) result.push_back(v.clone().requires_grad_());
    return result;
  };
  auto alone = copy();
  torch::optim::Adam plain(alone, options);
  std::istringstream in(state);
  torch::load(plain, in);
  train(alone, plain, sizes, 3, 6);
  CHECK(torch::allclose(flat(alone), flat(truth), 1e-5, 1e-6));

  const auto loaded = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    auto parameters = copy();
    ZeroRedundancyOptimizer<torch::optim::Adam> zero(group, parameters, options);
    zero.load(state);
    train(parameters, zero, sizes, 3, 6);
    require_close(flat(parameters), flat(truth), "a parameter");
  });
  CHECK(outcome(loaded) == "all well");
}

TEST_CASE("ZeRO: parameters of another memory layout are shared too") {
  const auto errors = Ranks{.world_size = 2}.run([](ProcessGroup& group) {
    Tensors parameters{torch::arange(6.0).view({2, 3}).t().requires_grad_(),
                       torch::ones({6}).requires_grad_()};
    for (auto& p : parameters) p.mutable_grad() = torch::ones_like(p);
    ZeroRedundancyOptimizer<torch::optim::SGD> zero(group, parameters, torch::optim::SGDOptions(1));
    zero.step();
    require(torch::equal(parameters[0].detach(), torch::arange(6.0).view({2, 3}).t() - 1) &&
                torch::equal(parameters[1].detach(), torch::zeros({6})),
            "wrong values");
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("ZeRO: one that was moved from is refused by name, and may be assigned to") {
  using Zero = ZeroRedundancyOptimizer<torch::optim::SGD>;
  const auto errors = Ranks{.world_size = 1}.run([](ProcessGroup& group) {
    Tensors parameters{torch::ones({2}).requires_grad_()};
    Zero zero(group, parameters, torch::optim::SGDOptions(1));
    Zero taken = std::move(zero);
    const std::vector<std::function<void()>> calls = {
        [&] { zero.step(); },         [&] { zero.zero_grad(); },   [&] { (void)zero.local(); },
        [&] { (void)zero.shares(); }, [&] { zero.consolidate(); }, [&] { zero.load({}); }};
    for (const auto& call : calls) {
      std::string text = "nothing";
      try {
        call();
      } catch (const Error& error) {
        text = error.text();
      }
      require(text.find("this ZeroRedundancyOptimizer was moved from") == 0, text);
    }
    zero = std::move(taken);
    parameters[0].mutable_grad() = torch::ones({2});
    zero.step();
    require(torch::equal(parameters[0].detach(), torch::zeros({2})), "where it was assigned");
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Adapter: clip_grad_norm is torch::nn::utils::clip_grad_norm_") {
  for (const double max_norm : {0.1, 1.0, 1000.0}) {
    auto ours = parameters_of({3, 40, 1}), theirs = parameters_of({3, 40, 1});
    const auto gradients = draw(9, {3, 40, 1});
    for (std::size_t i = 0; i < 2; ++i) {  // The last one has none.
      ours[i].mutable_grad() = gradients[i].clone();
      theirs[i].mutable_grad() = gradients[i].clone();
    }
    const double norm = ddprun::torch::clip_grad_norm(ours, max_norm);
    CHECK(norm == Approx(torch::nn::utils::clip_grad_norm_(theirs, max_norm)));
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(torch::allclose(ours[i].grad(), theirs[i].grad(), 1e-5, 1e-7));
    }
  }
}

// What is used for gradients of a GPU, on the host's.
TEST_CASE("Adapter: libtorch's kernels clip and unscale as the SDK does") {
  for (const double norm_type : {1.0, 2.0, 3.0, std::numeric_limits<double>::infinity()}) {
    auto ours = draw(9, {3, 40, 1}), theirs = draw(9, {3, 40, 1});
    auto parameters = parameters_of({3, 40, 1});
    for (std::size_t i = 0; i < 3; ++i) parameters[i].mutable_grad() = theirs[i];
    const ddprun::ClipOptions options{.norm_type = norm_type};
    const double norm = ddprun::torch::detail::clip_by_kernels(ours, 0.5, options);
    CHECK(norm == Approx(ddprun::torch::clip_grad_norm(parameters, 0.5, options)));
    for (std::size_t i = 0; i < 3; ++i) CHECK(torch::allclose(ours[i], theirs[i], 1e-5, 1e-7));
  }
  Tensors bad{torch::full({2}, std::numeric_limits<float>::quiet_NaN())};
  CHECK_THROWS_AS(ddprun::torch::detail::clip_by_kernels(bad, 1, {.error_if_nonfinite = true}),
                  Error);
  Tensors some{torch::full({2}, 8.0F), torch::full({3}, 4.0F)};
  CHECK(ddprun::torch::detail::unscale_by_kernels(some, 0.25));
  CHECK(torch::equal(some[1], torch::ones({3})));
  some[0][1] = std::numeric_limits<float>::infinity();
  CHECK_FALSE(ddprun::torch::detail::unscale_by_kernels(some, 0.25));
  CHECK_THROWS_AS(ddprun::torch::detail::unscale_by_kernels({torch::ones({1}, torch::kHalf)}, 1),
                  Error);
  CHECK(ddprun::torch::detail::unscale_by_kernels({}, 1));
}

TEST_CASE("ZeRO: shares packed by libtorch's kernels reach all ranks") {
  const auto errors = Ranks{.world_size = 3}.run([](ProcessGroup& group) {
    const auto mine = [](int rank, std::int64_t n) { return torch::full({n, 2}, rank + 1.0); };
    Tensors values{mine(group.rank(), 3), mine(group.rank(), 1).to(torch::kFloat),
                   mine(group.rank(), 5)};
    ddprun::torch::detail::broadcast_packed(group, {{1, 2}, {}, {0}}, values);
    require(torch::equal(values[0], mine(2, 3)) && torch::equal(values[2], mine(0, 5)) &&
                torch::equal(values[1], mine(0, 1).to(torch::kFloat)),
            "wrong values");
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("GradScaler: a step whose gradients overflowed is left out, of its optimizer alone") {
  auto a = torch::ones({2}).requires_grad_(), b = torch::ones({2}).requires_grad_();
  torch::optim::SGD first(Tensors{a}, 1.0), second(Tensors{b}, 1.0);
  ddprun::torch::GradScaler scaler({.init_scale = 8, .growth_interval = 1});
  scaler.scale((a * 0.5).sum() + (b * std::numeric_limits<float>::infinity()).sum()).backward();
  scaler.unscale(first);
  CHECK(torch::equal(a.grad(), torch::full({2}, 0.5)));
  CHECK_THROWS_AS(scaler.unscale(first), Error);
  CHECK(scaler.step(first));
  CHECK_FALSE(scaler.step(second));
  scaler.update();
  CHECK(torch::equal(a.detach(), torch::full({2}, 0.5)));
  CHECK(torch::equal(b.detach(), torch::ones({2})));
  CHECK(scaler.scaler().scale() == 4);

  first.zero_grad();
  scaler.scale(a.sum()).backward();
  CHECK(scaler.step(first));
  scaler.update();
  CHECK(torch::equal(a.detach(), torch::full({2}, -0.5)));
  CHECK(scaler.scaler().scale() == 8);

  ddprun::torch::GradScaler off({.enabled = false});
  CHECK(off.scale(a).data_ptr() == a.data_ptr());
  CHECK(off.step(first));
  off.update();
}
