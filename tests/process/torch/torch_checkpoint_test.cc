// Checkpoints of libtorch's modules, optimizers and samplers. Ranks are threads.

#include <torch/torch.h>
// libtorch has a CHECK of its own.
#undef CHECK
#include <catch2/catch.hpp>
#include <string>

#include "ddprun/torch.h"
#include "tests/support/ranks.h"

namespace {

namespace dt = ddprun::torch;
using ddprun::Error;
using ddprun::ErrorKind;
using ddprun::ProcessGroup;
using ddprun::test::outcome;
using ddprun::test::Ranks;
using torch::optim::AdamOptions;

// Threads report through this, as Catch2 may not be used there.
void require(bool ok, const std::string& text) {
  if (!ok) throw Error(ErrorKind::mismatch, {}, text);
}

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("layer", layer);
    register_module("norm", norm);
    register_buffer("mask", torch::ones({3}, torch::kBool));
    register_buffer("empty", torch::ones({0}));
    scale = register_parameter("scale", torch::ones({2, 3}).t(), /*requires_grad=*/false);
  }
  torch::Tensor forward(const torch::Tensor& x) { return norm(layer(x)) * scale.sum(1); }
  torch::nn::Linear layer{4, 3};
  torch::nn::BatchNorm1d norm{3};
  torch::Tensor scale;
};
TORCH_MODULE(Net);

// All that one rank trains.
struct Training {
  explicit Training(ProcessGroup& g)
      : group(g), ddp(g, model), adam(ddp.parameters(), AdamOptions(0.01)), sampler(g, 64) {}

  void step() {
    const auto batch = *sampler.next(4);
    ddp.zero_grad();
    const auto x =
        torch::arange(16, torch::kFloat).view({4, 4}).sin() * static_cast<double>(1 + batch[0]);
    ddp(x).square().sum().backward();
    adam.step();
    sampler.advance(4);
  }
  std::optional<std::int64_t> load(const std::string& folder) {
    return dt::load_latest(group, folder, {ddp, adam, sampler});
  }

  ProcessGroup& group;
  Net model;
  dt::DistributedDataParallel<NetImpl> ddp;
  torch::optim::Adam adam;
  dt::DistributedSampler sampler;
};

void require_same(const torch::nn::Module& a, const torch::nn::Module& b, const std::string& when) {
  for (const auto& item : a.named_parameters()) {
    require(item.value().equal(b.named_parameters()[item.key()]), item.key() + " " + when);
  }
  for (const auto& item : a.named_buffers()) {
    require(item.value().equal(b.named_buffers()[item.key()]), item.key() + " " + when);
  }
}

}  // namespace

TEST_CASE("Torch checkpoint: training goes on where it was saved, to the same bits") {
  const ddprun::test::TemporaryDirectory directory;
  const std::string folder = directory / "run";
  const auto errors = Ranks{}.run([&](ProcessGroup& group) {
    Training first(group);
    require(!first.load(folder), "a checkpoint before the first");
    first.model->scale.fill_(0.5);
    first.model->named_buffers()["mask"][group.rank()] = false;  // Rank 0's counts.
    first.ddp.broadcast_buffers();
    for (int i = 0; i < 3; ++i) first.step();
    ddprun::CheckpointWriter writer(group, folder);
    dt::save_async(group, writer, 3, {first.ddp, first.adam, first.sampler});
    writer.wait();
    first.ddp.broadcast_buffers();  // Rank 0's were saved.

    Training second(group);
    require(second.load(folder) == 3, "the step");
    require_same(*first.model, *second.model, "after loading");
    require(second.sampler.state().consumed == 24, "the sampler");
    first.step();
    second.step();
    require_same(*first.model, *second.model, "a step later");
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Torch checkpoint: another number of ranks loads it, with sharded state or without") {
  const ddprun::test::TemporaryDirectory directory;
  const std::string folder = directory / "run";
  const auto errors = Ranks{}.run([&](ProcessGroup& group) {
    Net model;
    dt::DistributedDataParallel ddp(group, model);
    dt::ZeroRedundancyOptimizer<torch::optim::Adam> zero(group, ddp.parameters(),
                                                         AdamOptions(0.01));
    ddp(torch::full({4, 4}, 1.0 + group.rank())).square().sum().backward();
    zero.step();
    ddprun::CheckpointWriter writer(group, folder);
    dt::save_async(group, writer, 1, {*model, zero});
    writer.wait();

    auto alone = group.split(group.rank());
    Net other;
    torch::optim::Adam adam(dt::parameters(other), AdamOptions(0.01));
    require(dt::load_latest(*alone, folder, {other, adam}) == 1, "the step");
    ddp.broadcast_buffers();
    require_same(*model, *other, "alone");
    require(adam.state().size() == 4, "states of " + std::to_string(adam.state().size()));

    torch::nn::Linear unlike(4, 2);
    try {
      dt::load_latest(*alone, folder, {unlike});
      require(false, "another module was loaded");
    } catch (const Error& error) {
      require(error.kind() == ErrorKind::bad_argument, error.what());
    }
  });
  CHECK(outcome(errors) == "all well");
}
