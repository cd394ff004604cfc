// The libtorch adapter in the modes of DdpOptions, against one process with the whole batch; ranks
// are threads.

#include <torch/torch.h>
// libtorch has a CHECK of its own.
#undef CHECK
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "ddprun/torch.h"
#include "tests/support/ranks.h"

namespace {

using ddprun::Error;
using ddprun::ProcessGroup;
using ddprun::test::outcome;
using ddprun::test::Ranks;

torch::Tensor random(at::IntArrayRef shape, std::uint64_t seed) {
  return torch::randn(shape, at::detail::createCPUGenerator(seed));
}

// Two branches, of which a pass takes either.
struct BranchesImpl : torch::nn::Module {
  BranchesImpl() {
    for (auto* layer : {&trunk, &left, &right}) *layer = torch::nn::Linear(4, 4);
    register_module("right", right);  // Not the order of the forward pass.
    register_module("trunk", trunk);
    register_module("left", left);
    const torch::NoGradGuard no_grad;
    std::uint64_t seed = 1;
    for (auto& p : parameters()) p.copy_(random(p.sizes(), seed++));
  }
  torch::Tensor forward(const torch::Tensor& x, bool use_left) {
    const auto hidden = torch::tanh(trunk->forward(x));
    return use_left ? left->forward(hidden) : right->forward(hidden);
  }
  torch::nn::Linear trunk{nullptr}, left{nullptr}, right{nullptr};
};
TORCH_MODULE(Branches);
using Ddp = ddprun::torch::DistributedDataParallel<BranchesImpl>;

ddprun::torch::DdpOptions tiny() {
  ddprun::torch::DdpOptions options;
  options.first_bucket_bytes = options.bucket_bytes = 1;
  return options;
}

void require(bool ok, const std::string& text) {
  if (!ok) throw Error(ddprun::ErrorKind::mismatch, {}, text);
}

void require_close(const torch::Tensor& a, const torch::Tensor& b, const std::string& what) {
  require(a.defined() && b.defined(), what + " is undefined");
  require(torch::allclose(a, b, 1e-6, 1e-6),
          what + " differs by " + std::to_string((a - b).abs().max().item<double>()));
}

void clear_gradients(Branches& model) {
  for (auto& p : model->parameters()) p.mutable_grad().reset();
}

}  // namespace

TEST_CASE("Adapter: ranks that take different branches train as one process does") {
  for (const bool as_tensor : {true, false}) {
    const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
      Branches model, reference;
      auto options = tiny();
      options.find_unused = true;
      Ddp ddp(group, model, options);
      for (int step = 0; step < 3; ++step) {
        clear_gradients(model);
        clear_gradients(reference);
        const auto x = random({2, 4}, 10), y = random({2, 4}, 11);
        ((reference->forward(x, true).sum() + reference->forward(y, false).sum()) / 2).backward();
        const bool use_left = group.rank() == 0;
        // A result that the graph cannot be seen from: unused parameters show at the end.
        auto out = as_tensor ? ddp(use_left ? x : y, use_left)
                             : model->forward(use_left ? x : y, use_left);
        out.sum().backward();
        for (const auto& item : model->named_parameters()) {
          require_close(item.value().grad(), reference->named_parameters()[item.key()].grad(),
                        item.key());
        }
      }
      require(ddp.total().steps == 3 && ddp.total().buckets == 18, "steps");
    });
    CHECK(outcome(errors) == "all well");
  }
}

TEST_CASE("Adapter: a gradient that no rank has stays undefined") {
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Branches model;
    auto options = tiny();
    options.find_unused = true;
    Ddp ddp(group, model, options);
    for (int step = 0; step < 3; ++step) {
      clear_gradients(model);
      ddp(random({2, 4}, 1), true).sum().backward();
      require(!model->right->weight.grad().defined(), "a gradient appeared");
      require(model->left->weight.grad().defined(), "a gradient is missing");
    }
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Adapter: a static graph with an unused branch and a layer that is used twice") {
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Branches model, reference;
    auto options = tiny();
    options.static_graph = true;
    Ddp ddp(group, model, options);
    for (int step = 0; step < 3; ++step) {
      clear_gradients(model);
      clear_gradients(reference);
      const auto mine = random({2, 4}, static_cast<std::uint64_t>(group.rank()));
      const auto all = torch::cat({random({2, 4}, 0), random({2, 4}, 1)});
      (reference->forward(reference->forward(all, true), true).sum() / 2).backward();
      const auto loss = [&] { return ddp(model->forward(mine, true), true).sum(); };
      if (step == 2) {
        const auto guard = ddp.no_sync();
        loss().backward();
      }
      loss().backward();
      const double times = step == 2 ? 2 : 1;
      require_close(model->trunk->weight.grad(), times * reference->trunk->weight.grad(), "trunk");
      require_close(model->left->bias.grad(), times * reference->left->bias.grad(), "left");
      require(!model->right->weight.grad().defined(), "a gradient appeared");
    }
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Adapter: buckets are rebuilt in the order of the backward pass, and .grad follows") {
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Branches model;
    auto options = tiny();
    options.static_graph = true;
    Ddp ddp(group, model, options);
    const auto before = ddp.buckets();
    torch::Tensor grad;
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      ddp(random({2, 4}, 1), false).sum().backward();
      if (step == 0) grad = model->trunk->weight.grad().clone();
      require_close(model->trunk->weight.grad(), grad, "gradient");
      require(model->trunk->weight.grad().data_ptr() == ddp.neutral().gradient(2).data,
              "a gradient left its bucket");
    }
    require(ddp.buckets() != before, "not rebuilt");
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Adapter: ranks with unequal batches join, and end with the same weights") {
  std::vector<torch::Tensor> weights(3);
  const auto errors = Ranks{.world_size = 3}.run([&](ProcessGroup& group) {
    Branches model;
    auto options = tiny();
    options.uneven_inputs = options.static_graph = true;
    Ddp ddp(group, model, options);
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    for (int step = 0; step < 2 + group.rank(); ++step) {
      ddp.zero_grad();
      ddp(random({2, 4}, 1), true).sum().backward();
      optimizer.step();
    }
    ddp.join();
    weights[static_cast<std::size_t>(group.rank())] = model->trunk->weight.detach().clone();
  });
  CHECK(outcome(errors) == "all well");
  CHECK(torch::equal(weights[0], weights[2]));
  CHECK(torch::equal(weights[1], weights[2]));
}

TEST_CASE("Adapter: weights that drift apart are named by checksum_every") {
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Branches model;
    auto options = tiny();
    options.checksum_every = 1;
    options.static_graph = true;
    Ddp ddp(group, model, options);
    for (int step = 0; step < 4; ++step) {
      if (step == 2 && group.rank() == 1) {
        const torch::NoGradGuard no_grad;
        model->left->bias.add_(1);
      }
      ddp(random({2, 4}, 1), true).sum().backward();
    }
  });
  CHECK_THAT(outcome(errors), Catch::Matchers::Contains("parameter left.bias of rank"));
}

TEST_CASE("Adapter: the optimizer may step in the backward pass") {
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Branches model, reference;
    auto options = tiny();
    options.static_graph = true;
    Ddp ddp(group, model, options);
    const auto parameters = model->parameters();
    ddp.on_bucket_reduced([&](const ddprun::GradientBucket& bucket) {
      const torch::NoGradGuard no_grad;
      for (const auto& piece : bucket.pieces) {
        auto p = parameters[piece.parameter];
        p.sub_(torch::from_blob(piece.gradient.data, p.sizes()), 0.1);
      }
    });
    torch::optim::SGD optimizer(reference->parameters(), 0.1);
    const auto x = random({2, 4}, 1);
    for (int step = 0; step < 3; ++step) {
      ddp.zero_grad();
      ddp(x, true).sum().backward();
      optimizer.zero_grad();
      reference->forward(x, true).sum().backward();
      optimizer.step();
    }
    require_close(model->trunk->weight, reference->trunk->weight, "weight");
    require_close(model->left->weight, reference->left->weight, "weight");
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Adapter: after reconfigure it trains on with the new peers") {
  const ddprun::test::TemporaryDirectory directory;
  const auto errors = Ranks{.world_size = 2}.run([&](ProcessGroup& group) {
    Branches model;
    auto options = tiny();
    options.static_graph = true;
    Ddp ddp(group, model, options);
    ddp(random({2, 4}, 1), true).sum().backward();
    auto next =
        ProcessGroup::init(Ranks{.world_size = 2}.options(directory / "next", 1 - group.rank()));
    {
      const torch::NoGradGuard no_grad;
      model->trunk->weight.fill_(group.rank());
    }
    ddp.reconfigure(next);
    require(model->trunk->weight[0][0].item<float>() == 1, "values are not the new rank 0's");
    ddp(random({2, 4}, static_cast<std::uint64_t>(group.rank())), true).sum().backward();
    Branches reference;
    const torch::NoGradGuard no_grad;
    reference->trunk->weight.fill_(1);
    const at::AutoGradMode grad_on(true);
    const auto all = torch::cat({random({2, 4}, 0), random({2, 4}, 1)});
    (reference->forward(all, true).sum() / 2).backward();
    require_close(model->trunk->weight.grad(), reference->trunk->weight.grad(), "gradient");
    next.barrier();
  });
  CHECK(outcome(errors) == "all well");
}
