// The libtorch adapter where a module changes after it was wrapped, has types that are no floats,
// shares weights, or throws in the middle of a pass. Ranks are threads, each with its own model.

#include <torch/torch.h>
// libtorch has a CHECK of its own.
#undef CHECK
#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ddprun/torch.h"
#include "tests/support/ranks.h"

namespace {

using Catch::Matchers::Contains;
using ddprun::Error;
using ddprun::ErrorKind;
using ddprun::ProcessGroup;
using ddprun::test::outcome;
using ddprun::test::Ranks;
using Ddp = ddprun::torch::DistributedDataParallel<torch::nn::SequentialImpl>;

// Threads report through this, as Catch2 may not be used there.
void require(bool ok, const std::string& text) {
  if (!ok) throw Error(ErrorKind::mismatch, {}, text);
}

torch::nn::Sequential two_layers() {
  return torch::nn::Sequential(torch::nn::Linear(6, 16), torch::nn::ReLU(),
                               torch::nn::Linear(16, 3));
}

ddprun::torch::DdpOptions each_alone() {
  ddprun::torch::DdpOptions options;
  options.first_bucket_bytes = options.bucket_bytes = 1;
  return options;
}

torch::Tensor input(const ProcessGroup& group) { return torch::full({4, 6}, 1.0 + group.rank()); }

// The text of the Error(bad_argument) that `call` throws.
template <class Call>
std::string misuse(const Call& call) {
  try {
    call();
  } catch (const Error& error) {
    return error.kind() == ErrorKind::bad_argument ? error.what() : "another kind";
  } catch (const std::exception& error) {
    return std::string("another type: ") + error.what();
  }
  return "nothing";
}

void require_text(const std::string& text, const std::string& part) {
  require(text.find(part) != std::string::npos, "'" + text + "' lacks '" + part + "'");
}

}  // namespace

TEST_CASE("Adapter changes: a parameter frozen after wrapping is named, and may thaw again") {
  const auto errors = Ranks{}.run([](ProcessGroup& group) {
    auto model = two_layers();
    Ddp ddp(group, model);
    ddp(input(group)).sum().backward();
    auto weight = model->named_parameters()["2.weight"];
    weight.requires_grad_(false);
    require_text(misuse([&] { ddp(input(group)); }),
                 "parameter 2.weight was frozen (requires_grad is off) after it was wrapped");
    model->eval();
    (void)ddp(input(group));  // Looks at no gradients.
    require_text(misuse([&] { ddp(input(group)).sum().backward(); }), "parameter 2.weight");
    model->train();
    weight.requires_grad_(true);
    ddp.zero_grad();
    ddp(input(group)).sum().backward();
    require(weight.grad().defined(), "no gradient after it has thawed");
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Adapter changes: a parameter unfrozen after wrapping is named") {
  const auto errors = Ranks{}.run([](ProcessGroup& group) {
    auto model = two_layers();
    auto weight = model->named_parameters()["0.weight"];
    weight.requires_grad_(false);
    Ddp ddp(group, model);
    ddp(input(group)).sum().backward();
    weight.requires_grad_(true);
    require_text(misuse([&] { ddp(input(group)); }),
                 "parameter 0.weight was frozen when it was wrapped");
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Adapter changes: a module of another type than when it was wrapped is refused") {
  const auto errors = Ranks{}.run([](ProcessGroup& group) {
    auto model = two_layers();
    Ddp ddp(group, model);
    model->to(torch::kDouble);
    const auto x = input(group).to(torch::kDouble);
    require_text(misuse([&] { ddp(x); }),
                 "parameter 0.weight is Double [16, 6] on cpu now, but was Float [16, 6] on cpu");
    model->eval();  // Then it is found out in the backward pass, if there is one.
    require_text(misuse([&] { ddp(x).sum().backward(); }), "parameter 0.weight");
    model->train();
    model->to(torch::kFloat);
    ddp.zero_grad();
    ddp(input(group)).sum().backward();
  });
  CHECK(outcome(errors) == "all well");
}

struct Mixture : torch::nn::Module {
  explicit Mixture(int rank) {
    for (const auto type : {torch::kBool, torch::kChar, torch::kShort, torch::kByte, torch::kInt,
                            torch::kLong, torch::kHalf, torch::kBFloat16, torch::kFloat,
                            torch::kDouble, torch::kComplexFloat, torch::kComplexDouble,
                            at::kComplexHalf /* Which collectives do not know. */}) {
      const std::string name = "of_" + std::string(c10::toString(type));
      register_buffer(name, torch::full({2, 3}, rank == 0 ? 1 : 0, torch::kFloat).to(type));
      register_buffer(name + "_scalar", torch::full({}, rank == 0 ? 1 : 0).to(type));
    }
    weight = register_parameter("weight", torch::ones({1}));
  }
  torch::Tensor forward(const torch::Tensor& x) { return x * weight; }
  torch::Tensor weight;
};

TEST_CASE("Adapter changes: buffers of every type become rank 0's") {
  const auto errors = Ranks{}.run([](ProcessGroup& group) {
    auto model = std::make_shared<Mixture>(group.rank());
    ddprun::torch::DistributedDataParallel<Mixture> ddp(group, model);
    const auto all_ones = [&](const std::string& when) {
      for (const auto& item : model->named_buffers()) {
        require(item.value().to(torch::kComplexDouble).eq(1).all().item<bool>(),
                item.key() + " " + when);
      }
    };
    all_ones("at the start");
    if (group.rank() == 1) {
      for (auto& b : model->buffers()) b.zero_();
    }
    ddp(torch::ones({1})).sum().backward();
    all_ones("in forward");
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Adapter changes: a buffer that cannot be broadcast is named") {
  const auto errors = Ranks{.world_size = 1}.run([](ProcessGroup& group) {
    auto model = std::make_shared<Mixture>(0);
    model->register_buffer("mask", torch::eye(3).to_sparse());
    ddprun::torch::DistributedDataParallel<Mixture> ddp(group, model);
  });
  CHECK_THAT(outcome(errors), Contains("buffer mask is sparse or quantized"));
}

struct Phase : torch::nn::Module {
  explicit Phase(double value) {
    turn = register_parameter("turn", torch::full({3}, value, torch::kComplexFloat));
  }
  torch::Tensor forward(const torch::Tensor& x) { return torch::abs(turn * x).square(); }
  torch::Tensor turn;
};

TEST_CASE("Adapter changes: complex parameters are averaged and clipped as pairs of numbers") {
  const auto errors = Ranks{}.run([](ProcessGroup& group) {
    auto model = std::make_shared<Phase>(1.0 + group.rank());  // Rank 0's wins.
    ddprun::torch::DistributedDataParallel<Phase> ddp(group, model);
    const auto x = torch::full({3}, 1.0 + group.rank(), torch::kComplexFloat);
    ddp(x).sum().backward();
    auto reference = std::make_shared<Phase>(1.0);
    const auto both = reference->forward(torch::full({3}, 1.0, torch::kComplexFloat)) +
                      reference->forward(torch::full({3}, 2.0, torch::kComplexFloat));
    (both.sum() / 2).backward();
    require(torch::allclose(model->turn.grad(), reference->turn.grad()), "the average");
    const double norm = ddprun::torch::clip_grad_norm(*model, 1.0);
    require(
        std::abs(norm - reference->turn.grad().abs().square().sum().sqrt().item<double>()) < 1e-4,
        "the norm");
    ddprun::torch::ZeroRedundancyOptimizer<torch::optim::SGD> zero(
        group, ddprun::torch::parameters(*model), torch::optim::SGDOptions(0.1));
    zero.step();
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Adapter changes: a weight that two modules share counts once, everywhere") {
  const auto errors = Ranks{}.run([](ProcessGroup& group) {
    auto layer = torch::nn::Linear(4, 4);
    torch::nn::Sequential model(layer, torch::nn::ReLU(), layer);
    require(model->parameters().size() == 4, "libtorch names shared ones once by now");
    const auto once = ddprun::torch::parameters(model);
    require(once.size() == 2, "parameters()");
    Ddp ddp(group, model, each_alone());
    std::size_t travelling = 0;
    for (const auto& bucket : ddp.buckets()) travelling += bucket.size();
    require(travelling == 2, "they travel twice");
    ddp.zero_grad();
    ddp(torch::ones({2, 4})).sum().backward();
    double squares = 0;
    for (const auto& p : once) squares += p.grad().square().sum().item<double>();
    const auto close = [](double a, double b) { return std::abs(a - b) < 1e-4 * b; };
    require(close(ddprun::torch::clip_grad_norm(model, 1e9), std::sqrt(squares)), "of a module");
    const double clipped =
        ddprun::torch::clip_grad_norm(model->parameters(), std::sqrt(squares) / 2);
    require(close(clipped, std::sqrt(squares)), "of parameters");
    const double half = ddprun::torch::clip_grad_norm(model, 1e9);
    require(close(half, clipped / 2), "clipped twice");
    torch::optim::SGD sgd(model->parameters(), 0.1);
    ddprun::GradScalerOptions twice;
    twice.init_scale = 2;
    ddprun::torch::GradScaler scaler(twice);
    scaler.unscale(sgd);
    require(close(ddprun::torch::clip_grad_norm(model, 1e9), half / 2), "unscaled twice");
    ddprun::torch::ZeroRedundancyOptimizer<torch::optim::SGD> zero(group, model->parameters(),
                                                                   torch::optim::SGDOptions(0.1));
    require(zero.shares()[0].size() + zero.shares()[1].size() == 2, "ZeRO's shares");
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Adapter changes: the group may move and its handle end while it is used") {
  const auto errors = Ranks{}.run([](ProcessGroup& group) {
    std::optional<ProcessGroup> handle(std::move(group));
    torch::nn::Sequential model(
        torch::nn::Linear(6, 3),
        ddprun::torch::SyncBatchNorm(*handle, ddprun::torch::SyncBatchNormOptions{3}));
    Ddp ddp(*handle, model);
    ddprun::torch::ZeroRedundancyOptimizer<torch::optim::SGD> zero(
        *handle, ddprun::torch::parameters(model), torch::optim::SGDOptions(0.1));
    {
      const ProcessGroup elsewhere = std::move(*handle);
      handle.reset();
      ddp(input(elsewhere)).sum().backward();
    }
    ddp(torch::rand({4, 6})).square().sum().backward();
    zero.step();
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Adapter changes: a pass that one rank cannot end is cancelled, and all go on") {
  for (const bool in_forward : {true, false}) {
    const auto errors = Ranks{}.run([&](ProcessGroup& group) {
      auto model = two_layers();
      Ddp ddp(group, model, each_alone());
      ddp.cancel_backward();  // There is none.
      for (int step = 0; step < 4; ++step) {
        const bool fails = step % 2 == 1 && group.rank() == 1;
        std::int32_t well = 1;
        ddp.zero_grad();
        try {
          auto out = ddp(input(group));
          if (fails && in_forward) throw std::logic_error("before the pass");
          if (fails) {  // Behind the last layer's bias: its bucket is on its way by then.
            const auto hidden = model[0]->as<torch::nn::Linear>()->forward(input(group));
            hidden.register_hook([](const torch::Tensor& g) {
              throw std::logic_error("in the middle");
              return g;
            });
            out = model[2]->as<torch::nn::Linear>()->forward(torch::relu(hidden));
          }
          out.sum().backward();
        } catch (const std::logic_error&) {
          ddp.cancel_backward();
          well = 0;
        }
        group.all_reduce(ddprun::buffer(&well, 1), ddprun::ReduceOp::min);
        require(well == (step % 2 == 0 ? 1 : 0), "what the ranks agree on");
      }
      ddp.cancel_backward();  // Nothing is due.
      require(ddp.total().steps >= 2, "steps");
    });
    CHECK(outcome(errors) == "all well");
  }
}
