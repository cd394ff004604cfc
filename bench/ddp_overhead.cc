// What does DistributedDataParallel add to a backward pass, with communication off?
//
//   bench_ddp_overhead [rounds]
//
// One process, a world of one, libtorch with one thread. Each round runs, in turn: a bare step
// (forward, backward, SGD), and the same step of the same model under DistributedDataParallel with
// the noop hook and the sync timer on. The ConvNet is that of examples/train, batch 100; the
// perceptron has 25 million parameters, batch 32. Prints medians, and the median of the rounds'
// own ratios. Also what the sync timer alone costs: calls to it, without a model.

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "ddprun/torch.h"
#include "worker_sdk/timer_shell.h"

namespace {

using Clock = std::chrono::steady_clock;
namespace nn = torch::nn;

nn::Sequential conv_net() {
  return nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 16, 5).padding(2)), nn::BatchNorm2d(16),
                        nn::ReLU(), nn::MaxPool2d(2),
                        nn::Conv2d(nn::Conv2dOptions(16, 32, 5).padding(2)), nn::BatchNorm2d(32),
                        nn::ReLU(), nn::MaxPool2d(2), nn::Flatten(), nn::Linear(7 * 7 * 32, 10));
}

nn::Sequential perceptron() {
  nn::Sequential model;
  for (int layer = 0; layer < 6; ++layer) {
    model->push_back(nn::Linear(2040, 2040));
    model->push_back(nn::ReLU());
  }
  model->push_back(nn::Linear(2040, 10));
  return model;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

struct Step {
  nn::Sequential model;
  torch::optim::SGD optimizer;
  torch::Tensor x, y;

  Step(nn::Sequential m, const torch::Tensor& input)
      : model(std::move(m)),
        optimizer(model->parameters(), torch::optim::SGDOptions(0.001).momentum(0.9)),
        x(input),
        y(torch::randint(10, {input.size(0)})) {}

  // Milliseconds.
  double run(const std::function<torch::Tensor()>& forward, const std::function<void()>& zero) {
    const auto start = Clock::now();
    zero();
    nn::functional::cross_entropy(forward(), y).backward();
    optimizer.step();
    return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  }
};

void compare(const char* name, const std::function<nn::Sequential()>& make,
             const torch::Tensor& input, int rounds, ddprun::ProcessGroup& group) {
  Step bare(make(), input);
  Step wrapped(make(), input);
  ddprun::torch::DdpOptions options;
  options.hook = ddprun::hooks::noop();
  ddprun::torch::DistributedDataParallel<nn::SequentialImpl> ddp(group, wrapped.model, options);
  const auto run_bare = [&] {
    return bare.run([&] { return bare.model->forward(bare.x); },
                    [&] { bare.optimizer.zero_grad(); });
  };
  const auto run_wrapped = [&] {
    return wrapped.run([&] { return ddp.forward(wrapped.x); }, [&] { ddp.zero_grad(); });
  };
  std::vector<double> bare_ms, ddp_ms, ratios;
  for (int round = -3; round < rounds; ++round) {
    const bool first = round % 2 == 0;
    double b = first ? run_bare() : 0;
    const double d = run_wrapped();
    if (!first) b = run_bare();
    if (round < 0) continue;
    bare_ms.push_back(b);
    ddp_ms.push_back(d);
    ratios.push_back(d / b);
  }
  std::printf("%-22s %9.3f ms %9.3f ms   ratio %.4f   buckets %zu\n", name, median(bare_ms),
              median(ddp_ms), median(ratios), ddp.buckets().size());
  std::fflush(stdout);
}

// A step's calls to the timer with 20 buckets, and the exchange every 32 steps in a world of one.
void cost_of_timer(ddprun::ProcessGroup& group) {
  ddprun::worker_sdk::TimerShell timer(group, {});
  constexpr int kSteps = 20'000;
  const auto start = Clock::now();
  for (int step = 0; step < kSteps; ++step) {
    timer.begin_forward();
    timer.begin_backward();
    std::vector<ddprun::worker_sdk::BucketTimes> buckets(20);
    for (auto& bucket : buckets) {
      bucket.launched = bucket.started = Clock::now();
      bucket.comm = std::chrono::microseconds(100);
      bucket.bytes = 1 << 20;
    }
    timer.begin_wait();
    timer.end_step(std::move(buckets));
  }
  const double us =
      std::chrono::duration<double, std::micro>(Clock::now() - start).count() / kSteps;
  std::printf("%-22s %9.3f us a step of 20 buckets: %.3f %% of a step of 5 ms\n", "sync timer", us,
              us / 50);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 60;
  torch::set_num_threads(1);
  torch::manual_seed(1);
  auto group = ddprun::ProcessGroup::init();
  std::printf("%-22s %12s %12s\n", "model", "bare", "DDP, noop");
  compare("ConvNet, batch 100", conv_net, torch::randn({100, 1, 28, 28}), rounds, group);
  compare("perceptron, batch 32", perceptron, torch::randn({32, 2040}), rounds, group);
  cost_of_timer(group);
}
