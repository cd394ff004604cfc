// The libtorch adapter over real process groups; ranks are threads, each with a model of its own.
// The truth is one process with the whole batch.

#include <torch/torch.h>
// libtorch has a CHECK of its own.
#undef CHECK
#include <catch2/catch.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "ddprun/torch.h"
#include "tests/support/fake_gpu.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"

namespace {

using Catch::Matchers::Contains;
using ddprun::Error;
using ddprun::ProcessGroup;
using ddprun::test::outcome;
using ddprun::test::Ranks;
using Ddp = ddprun::torch::DistributedDataParallel<torch::nn::SequentialImpl>;

torch::nn::Sequential make_model(std::uint64_t seed) {
  torch::nn::Sequential model(torch::nn::Linear(6, 16), torch::nn::ReLU(),
                              torch::nn::Linear(16, 3));
  auto generator = at::detail::createCPUGenerator(seed);
  const torch::NoGradGuard no_grad;
  for (auto& p : model->parameters()) p.copy_(torch::randn(p.sizes(), generator));
  return model;
}

torch::Tensor random(at::IntArrayRef shape, std::uint64_t seed) {
  return torch::randn(shape, at::detail::createCPUGenerator(seed));
}

const ddprun::torch::DdpOptions& small_buckets() {
  static const ddprun::torch::DdpOptions options = [] {
    ddprun::torch::DdpOptions o;
    o.first_bucket_bytes = o.bucket_bytes = 64;
    return o;
  }();
  return options;
}

// Threads report through this, as Catch2 may not be used there.
void require(bool ok, const std::string& text) {
  if (!ok) throw Error(ddprun::ErrorKind::mismatch, {}, text);
}

void require_close(const torch::Tensor& a, const torch::Tensor& b, const std::string& what) {
  require(torch::allclose(a.to(torch::kDouble), b.to(torch::kDouble), 1e-5, 1e-6),
          what + " differs by " + std::to_string((a - b).abs().max().item<double>()));
}

bool is_view(const torch::Tensor& parameter, const void* before) {
  return parameter.grad().defined() && parameter.grad().data_ptr() == before;
}

std::vector<const void*> addresses(const torch::nn::Sequential& model) {
  std::vector<const void*> result;
  for (const auto& p : model->parameters()) result.push_back(p.grad().data_ptr());
  return result;
}

// Three steps of SGD on this rank's half of each batch, against all of it in one process.
void train_like_one(ProcessGroup& group, bool set_to_none, bool spread) {
  const auto all = random({8, 6}, 5);
  const auto target = random({8, 3}, 6);
  auto reference = make_model(1);
  auto model = make_model(static_cast<std::uint64_t>(1 + group.rank()));  // Rank 0's wins.
  if (spread) {  // A parameter that is not contiguous.
    auto w = model->parameters()[0];
    w.set_data(w.detach().t().contiguous().t());
    require(!w.is_contiguous(), "the test is wrong");
  }
  Ddp ddp(group, model, small_buckets());
  const auto views = addresses(model);
  torch::optim::SGD ours(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  torch::optim::SGD theirs(reference->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (int step = 0; step < 3; ++step) {
    theirs.zero_grad();
    torch::mse_loss(reference->forward(all), target).backward();
    const auto loss = torch::mse_loss(ddp(all.narrow(0, 4 * group.rank(), 4)),
                                      target.narrow(0, 4 * group.rank(), 4));
    if (set_to_none) {
      for (auto& p : model->parameters()) p.mutable_grad().reset();
    } else {
      ddp.zero_grad();
    }
    loss.backward();
    for (std::size_t i = 0; i < views.size(); ++i) {
      require(is_view(model->parameters()[i], views[i]), "a gradient left its bucket");
      require_close(model->parameters()[i].grad(), reference->parameters()[i].grad(), "gradient");
    }
    ours.step();
    theirs.step();
  }
  require(ddp.buckets().size() > 1 && ddp.total().steps == 3, "buckets or steps");
  for (std::size_t i = 0; i < views.size(); ++i) {
    require_close(model->parameters()[i], reference->parameters()[i], "weight");
  }
}

}  // namespace

TEST_CASE("Adapter: two ranks train as one process does with both batches") {
  CHECK(outcome(Ranks{.world_size = 2}.run([](auto& g) { train_like_one(g, false, false); })) ==
        "all well");
}

TEST_CASE("Adapter: gradients set to none come back into their buckets") {
  CHECK(outcome(Ranks{.world_size = 2}.run([](auto& g) { train_like_one(g, true, false); })) ==
        "all well");
}

TEST_CASE("Adapter: parameters of another memory layout are trained too") {
  CHECK(outcome(Ranks{.world_size = 2}.run([](auto& g) { train_like_one(g, false, true); })) ==
        "all well");
}

TEST_CASE("Adapter: no_sync accumulates here, the next pass averages the sums") {
  const auto errors = Ranks{.world_size = 2}.run([](ProcessGroup& group) {
    auto model = make_model(1);
    Ddp ddp(group, model, small_buckets());
    const auto x = random({4, 6}, static_cast<std::uint64_t>(group.rank()));
    auto reference = make_model(1);
    const auto both = torch::cat({random({4, 6}, 0), random({4, 6}, 1)});
    (2 * reference->forward(both).sum() / 2).backward();
    {
      const auto guard = ddp.no_sync();
      ddp(x).sum().backward();
      require(ddp.total().steps == 0, "communicated in no_sync");
    }
    ddp(x).sum().backward();
    require(ddp.total().steps == 1, "did not synchronise");
    for (std::size_t i = 0; i < 4; ++i) {
      require_close(model->parameters()[i].grad(), reference->parameters()[i].grad(), "sum");
    }
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE(
    "Adapter: a parameter without a gradient is named by backward(), and the next step works") {
  const auto errors = Ranks{.world_size = 2}.run([](ProcessGroup& group) {
    auto model = make_model(1);
    Ddp ddp(group, model);
    std::string text = "nothing";
    try {
      model->parameters()[0].sum().backward();
    } catch (const std::exception& e) {
      text = e.what();
    }
    require(text.find("3 of 4 parameters got no gradient") != std::string::npos &&
                text.find("0.bias, 2.weight, 2.bias") != std::string::npos,
            "said: " + text);
    ddp.zero_grad();
    ddp(random({4, 6}, 0)).sum().backward();
    require(ddp.total().steps == 1, "the step after it failed");
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Adapter: a pass that an exception ended does not spoil the next one") {
  const auto errors = Ranks{.world_size = 2}.run([](ProcessGroup& group) {
    auto model = make_model(1);
    Ddp ddp(group, model, small_buckets());
    bool fail = true;
    const auto x = random({4, 6}, 0);
    const auto hidden = model[0]->as<torch::nn::Linear>()->forward(x);
    hidden.register_hook([&](const torch::Tensor&) {
      if (fail) throw std::runtime_error("in the middle");
    });
    const auto out = model[2]->as<torch::nn::Linear>()->forward(torch::relu(hidden));
    bool threw = false;
    try {
      out.sum().backward();
    } catch (const std::exception&) {
      threw = true;
    }
    require(threw, "nothing was thrown");
    ddp.zero_grad();
    ddp(x).sum().backward();
    require(ddp.total().steps == 1, "no step after it");
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Adapter: a module outlives its wrapper, gradients and all") {
  const auto errors = Ranks{.world_size = 1}.run([](ProcessGroup& group) {
    auto model = make_model(1);
    const auto x = random({4, 6}, 0);
    torch::Tensor first;
    {
      Ddp ddp(group, model);
      ddp(x).sum().backward();
      first = model->parameters()[0].grad().clone();
    }
    model->forward(x).sum().backward();
    require_close(model->parameters()[0].grad(), 2 * first, "gradient");
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Adapter: a model that loads its state after it was wrapped is still synchronised") {
  const auto errors = Ranks{.world_size = 2}.run([](ProcessGroup& group) {
    auto model = make_model(1);
    std::stringstream saved;
    torch::save(make_model(2), saved);
    Ddp ddp(group, model);
    const auto views = addresses(model);
    torch::load(model, saved);
    ddp(random({4, 6}, static_cast<std::uint64_t>(group.rank()))).sum().backward();
    require(ddp.total().steps == 1, "not synchronised");
    auto reference = make_model(2);
    const auto both = torch::cat({random({4, 6}, 0), random({4, 6}, 1)});
    (reference->forward(both).sum() / 2).backward();
    for (std::size_t i = 0; i < 4; ++i) {
      require(is_view(model->parameters()[i], views[i]), "a gradient left its bucket");
      require_close(model->parameters()[i].grad(), reference->parameters()[i].grad(), "gradient");
    }
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Adapter: buffers are rank 0's at the start and at each forward pass") {
  const auto errors = Ranks{.world_size = 2}.run([](ProcessGroup& group) {
    torch::nn::Sequential model(torch::nn::BatchNorm1d(6));
    auto mean = model->named_buffers()["0.running_mean"];
    auto batches = model->named_buffers()["0.num_batches_tracked"];
    mean.fill_(10 + group.rank());
    batches.fill_(5 + group.rank());
    Ddp ddp(group, model);
    require(mean[5].item<float>() == 10 && batches.item<std::int64_t>() == 5, "at the start");
    mean.fill_(20 + group.rank());
    ddp(torch::zeros({4, 6}));
    require_close(mean, torch::full({6}, 18.0), "in forward");  // 0.9 * 20
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("SyncBatchNorm: ranks with unequal batches compute what one process does") {
  const auto errors = Ranks{.world_size = 3}.run([](ProcessGroup& group) {
    const std::int64_t first[] = {0, 3, 8, 8};  // The last rank has no sample at all.
    const auto all = random({8, 4, 5, 5}, 1).mul_(3).add_(2);
    const auto factor = random({8, 4, 5, 5}, 2);
    torch::nn::BatchNorm2d one(4);
    ddprun::torch::SyncBatchNorm sync(group, ddprun::torch::SyncBatchNormOptions{4});
    for (int i = 0; i < 2; ++i) {
      const torch::NoGradGuard no_grad;
      one->parameters()[i].copy_(random({4}, 3 + i));
      sync->parameters()[i].copy_(random({4}, 3 + i));
    }
    auto x = all.clone().requires_grad_();
    one->forward(x).mul(factor).sum().backward();
    const auto from = first[group.rank()];
    const auto count = first[group.rank() + 1] - from;
    auto mine = all.narrow(0, from, count).clone().requires_grad_();
    const auto y = sync->forward(mine);
    y.mul(factor.narrow(0, from, count)).sum().backward();

    const torch::NoGradGuard no_grad;
    if (count > 0) {
      one->train();
      require_close(y,
                    torch::batch_norm(all, one->weight, one->bias, {}, {}, true, 0, 1e-5, false)
                        .narrow(0, from, count),
                    "output");
      require_close(mine.grad(), x.grad().narrow(0, from, count), "gradient of the input");
    }
    require_close(sync->running_mean(), one->running_mean, "running mean");
    require_close(sync->running_var(), one->running_var, "running variance");
    for (int i = 0; i < 2; ++i) {  // Each rank has its part of these; DDP adds them up.
      auto part = sync->parameters()[i].grad().clone();
      group.all_reduce(ddprun::torch::buffer(part), ddprun::ReduceOp::sum);
      require_close(part, one->parameters()[i].grad(), "gradient of a parameter");
    }
    sync->eval();
    one->eval();
    require_close(sync->forward(all), one->forward(all), "evaluation");
  });
  CHECK(outcome(errors) == "all well");
}

namespace {

// One step of a case of tests/golden/batch_norm.txt on one rank.
void golden_step(ProcessGroup& group, ddprun::torch::SyncBatchNorm& layer,
                 const ddprun::test::GoldenLine& line) {
  const auto channels = std::stoll(line.words[4]), places = std::stoll(line.words[5]);
  std::int64_t from = 0, count = 0, all = 0;
  for (std::size_t r = 0; r + 6 < line.words.size(); ++r) {
    count = std::stoll(line.words[6 + r]);
    if (static_cast<int>(r) < group.rank()) from += count;
    all += count;
  }
  count = std::stoll(line.words[6 + static_cast<std::size_t>(group.rank())]);
  std::vector<std::int64_t> shape{all, channels};
  if (places > 0) shape.push_back(places);
  const auto part = [&](std::size_t i) { return torch::tensor(line.numbers<float>(i)); };
  const auto mine = [&](std::size_t i) {
    return part(i).view(shape).narrow(0, from, count).clone();
  };
  {
    const torch::NoGradGuard no_grad;
    layer->named_parameters()["weight"].copy_(part(2));
    layer->named_parameters()["bias"].copy_(part(3));
    for (auto& p : layer->parameters()) p.mutable_grad() = torch::Tensor();
  }
  auto x = mine(0).requires_grad_();
  const auto y = layer->forward(x);
  y.backward(mine(1));
  const torch::NoGradGuard no_grad;
  if (count > 0) require_close(y, mine(4), "output");
  if (count > 0) require_close(x.grad(), mine(5), "gradient of the input");
  for (std::size_t i = 0; i < 2; ++i) {
    auto sum = layer->parameters()[i].grad().clone();
    group.all_reduce(ddprun::torch::buffer(sum), ddprun::ReduceOp::sum);
    require_close(sum, part(6 + i), "gradient of a parameter");
  }
  require_close(layer->running_mean(), part(8), "running mean");
  require_close(layer->running_var(), part(9), "running variance");
}

}  // namespace

TEST_CASE("SyncBatchNorm: every step is PyTorch's BatchNorm over the joined batch") {
  const auto lines = ddprun::test::golden_lines("tests/golden/batch_norm.txt", "sync_batch_norm");
  REQUIRE(lines.size() == 15);
  for (std::size_t first = 0; first < lines.size(); first += 3) {
    const auto& words = lines[first].words;
    INFO(lines[first].text.substr(0, 60));
    ddprun::torch::SyncBatchNormOptions options{std::stoll(words[4]), std::stod(words[3])};
    options.momentum.reset();
    if (words[2] != "none") options.momentum = std::stod(words[2]);
    const int ranks = static_cast<int>(words.size()) - 6;
    const auto errors = Ranks{.world_size = ranks}.run([&](ProcessGroup& group) {
      ddprun::torch::SyncBatchNorm layer(group, options);
      for (std::size_t step = 0; step < 3; ++step) golden_step(group, layer, lines[first + step]);
    });
    CHECK(outcome(errors) == "all well");
  }
}

TEST_CASE("Adapter: tensors that cannot be communicated are refused") {
  CHECK_THROWS_WITH(ddprun::torch::buffer(at::empty({2}, at::kComplexHalf)),
                    Contains("ComplexHalf"));
  CHECK_THROWS_WITH(ddprun::torch::buffer(torch::zeros({2, 3}).t()), Contains("not contiguous"));
}

// A tensor that claims to be a GPU's, without one.
torch::Tensor on_gpu(c10::DeviceIndex index) {
  return at::detail::make_tensor<c10::TensorImpl>(c10::DispatchKeySet(c10::DispatchKey::CUDA),
                                                  caffe2::TypeMeta::Make<float>(),
                                                  at::Device(at::kCUDA, index));
}

TEST_CASE("Adapter: tensors of a GPU are refused where arrays are the host's, and the other way") {
  CHECK_THROWS_WITH(ddprun::torch::buffer(on_gpu(1)), Contains("cuda:1") && Contains("nccl"));
  const auto errors = Ranks{.world_size = 1}.run([](ProcessGroup& group) {
    require(ddprun::torch::device_of(group).is_cpu() && group.device() == -1, "the device");
    require(ddprun::torch::buffer(group, torch::zeros({3})).count == 3, "the host's are taken");
    ddprun::torch::use_current_stream(group);  // There is none: nothing happens.
    (void)ddprun::torch::buffer(group, on_gpu(1));
  });
  CHECK_THAT(outcome(errors), Contains("is on cuda:1, but the arrays of the backend"));
  const ddprun::test::FakeGpu gpu;
  const auto refused = Ranks{.world_size = 2, .backend = "nccl"}.run([](ProcessGroup& group) {
    require(ddprun::torch::device_of(group) == torch::Device(torch::kCUDA, group.local_rank()),
            "the device");
    auto model = make_model(1);
    Ddp ddp(group, model);
  });
  for (const auto& error : refused) {
    REQUIRE(error);
    INFO(error->what());
    CHECK_THAT(error->what(), Contains("parameter 0.weight is on cpu, but") &&
                                  Contains("nccl are on cuda:") && Contains("device_of(group)"));
  }
}
