// A model that is split over two ranks: rank 0 has the first half of the layers, rank 1 the rest.
// Activations go one way and their gradients the other, by send and recv, while a batch is cut into
// micro-batches so that both halves work at once (GPipe's schedule: all forward, then all
// backward).
//
//   ddprun --nproc-per-node 2 pipeline
//
// Prints the loss of every fifth step, and at the end how far it is from that of one process with
// the whole model, which rank 1 trains beside.

#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <vector>

#include "ddprun/torch.h"

namespace {

constexpr std::int64_t kInputs = 8, kHidden = 32, kMicroBatch = 16;
constexpr int kMicroBatches = 4, kSteps = 20;

torch::nn::Sequential make_stage(int stage) {
  torch::manual_seed(static_cast<std::uint64_t>(stage));
  if (stage == 0) {
    return torch::nn::Sequential(torch::nn::Linear(kInputs, kHidden), torch::nn::Tanh());
  }
  return torch::nn::Sequential(torch::nn::Linear(kHidden, kHidden), torch::nn::Tanh(),
                               torch::nn::Linear(kHidden, 1));
}

// The same on both ranks, so inputs and targets need not be sent.
torch::Tensor inputs_of(int step) {
  torch::manual_seed(static_cast<std::uint64_t>(1000 + step));
  return torch::randn({kMicroBatches * kMicroBatch, kInputs});
}
torch::Tensor targets_of(const torch::Tensor& x) { return x.sum(1, /*keepdim=*/true).tanh(); }

torch::optim::SGD optimizer_of(const torch::nn::Sequential& model) {
  return torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(0.1));
}

void first_stage(ddprun::ProcessGroup& group) {
  auto stage = make_stage(0);
  auto optimizer = optimizer_of(stage);
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    std::vector<torch::Tensor> sent;
    for (const auto& x : inputs_of(step).split(kMicroBatch)) {
      sent.push_back(stage->forward(x));
      group.send(ddprun::torch::buffer(sent.back().detach()), 1);
    }
    for (const auto& activation : sent) {
      auto gradient = torch::empty_like(activation);
      group.recv(ddprun::torch::buffer(gradient), 1);
      activation.backward(gradient);
    }
    optimizer.step();
  }
}

// Returns the losses.
std::vector<double> last_stage(ddprun::ProcessGroup& group) {
  auto stage = make_stage(1);
  auto optimizer = optimizer_of(stage);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    optimizer.zero_grad();
    const auto targets = targets_of(inputs_of(step)).split(kMicroBatch);
    std::vector<torch::Tensor> received;
    for (int i = 0; i < kMicroBatches; ++i) {
      auto activation = torch::empty({kMicroBatch, kHidden});
      group.recv(ddprun::torch::buffer(activation), 0);
      received.push_back(activation.requires_grad_());
    }
    losses.push_back(0);
    for (std::size_t i = 0; i < received.size(); ++i) {
      const auto loss = torch::mse_loss(stage->forward(received[i]), targets[i]) / kMicroBatches;
      loss.backward();
      group.send(ddprun::torch::buffer(received[i].grad()), 0);
      losses.back() += loss.item<double>();
    }
    optimizer.step();
    if (step % 5 == 4) std::printf("step %d loss %.5f\n", step + 1, losses.back());
  }
  return losses;
}

// The reference for the pipeline: one process with both stages and whole batches.
std::vector<double> without_pipeline() {
  auto first = make_stage(0), last = make_stage(1);
  auto a = optimizer_of(first), b = optimizer_of(last);
  std::vector<double> losses;
  for (int step = 0; step < kSteps; ++step) {
    a.zero_grad();
    b.zero_grad();
    const auto x = inputs_of(step);
    const auto loss = torch::mse_loss(last->forward(first->forward(x)), targets_of(x));
    loss.backward();
    losses.push_back(loss.item<double>());
    a.step();
    b.step();
  }
  return losses;
}

}  // namespace

int main() {
  auto group = ddprun::ProcessGroup::init();
  if (group.world_size() != 2) {
    std::fprintf(stderr, "pipeline: has two stages; start it with ddprun --nproc-per-node 2\n");
    return 2;
  }
  if (group.rank() == 0) {
    first_stage(group);
    return 0;
  }
  const auto losses = last_stage(group), truth = without_pipeline();
  double worst = 0;
  for (std::size_t i = 0; i < losses.size(); ++i) {
    worst = std::fmax(worst, std::abs(losses[i] - truth[i]) / truth[i]);
  }
  std::printf("loss %.5f to %.5f; one process alone differs by %.1e at most\n", losses.front(),
              losses.back(), worst);
  return worst < 1e-4 ? 0 : 1;
}
