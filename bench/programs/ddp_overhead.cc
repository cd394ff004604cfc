// What does DistributedDataParallel add to a backward pass, with communication off?
//
//   bench_ddp_overhead [rounds]
//   bench_ddp_overhead step STEPS
//
// One process, a world of one, libtorch with one thread. Each round runs, in turn: a bare step
// (forward, backward, SGD), and the same step of the same model under DistributedDataParallel with
// the noop hook and the sync timer on. The ConvNet is that of examples/train, batch 100; the
// perceptron has 25 million parameters, batch 32. Prints medians, and the median of the rounds'
// own ratios, of wall time and of this process's CPU time; the latter also means something on a
// machine that others use. Also what the sync timer alone costs: calls to it, without a model.
//
// "step": with communication, among the ranks of a launcher, on GPUs where libtorch sees any; what
// ddp_step.py runs beside PyTorch's. Prints the time of a step of each model.

#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <string>
#include <vector>

#include "ddprun/torch.h"
#include "worker_sdk/timer/timer_shell.h"

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

struct Cost {
  double wall_ms = 0, cpu_ms = 0;

  static Cost now() {
    timespec cpu{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    const auto wall = Clock::now().time_since_epoch();
    return {std::chrono::duration<double, std::milli>(wall).count(),
            static_cast<double>(cpu.tv_sec) * 1e3 + static_cast<double>(cpu.tv_nsec) / 1e6};
  }
};

struct Step {
  nn::Sequential model;
  torch::optim::SGD optimizer;
  torch::Tensor x, y;

  Step(nn::Sequential m, const torch::Tensor& input)
      : model(std::move(m)),
        optimizer(model->parameters(), torch::optim::SGDOptions(0.001).momentum(0.9)),
        x(input),
        y(torch::randint(10, {input.size(0)})) {}

  Cost run(const std::function<torch::Tensor()>& forward, const std::function<void()>& zero) {
    const Cost start = Cost::now();
    zero();
    nn::functional::cross_entropy(forward(), y).backward();
    optimizer.step();
    const Cost end = Cost::now();
    return {end.wall_ms - start.wall_ms, end.cpu_ms - start.cpu_ms};
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
    return wrapped.run([&] { return ddp(wrapped.x); }, [&] { ddp.zero_grad(); });
  };
  std::vector<double> wall[2], cpu[2], wall_ratio, cpu_ratio;
  for (int round = -3; round < rounds; ++round) {
    Cost bare_cost;
    if (round % 2 == 0) bare_cost = run_bare();
    const Cost ddp_cost = run_wrapped();
    if (round % 2 != 0) bare_cost = run_bare();
    if (round < 0) continue;
    wall[0].push_back(bare_cost.wall_ms);
    wall[1].push_back(ddp_cost.wall_ms);
    cpu[0].push_back(bare_cost.cpu_ms);
    cpu[1].push_back(ddp_cost.cpu_ms);
    wall_ratio.push_back(ddp_cost.wall_ms / bare_cost.wall_ms);
    cpu_ratio.push_back(ddp_cost.cpu_ms / bare_cost.cpu_ms);
  }
  std::printf("%-22s %9.3f %9.3f %8.4f %12.3f %9.3f %8.4f   %zu\n", name, median(wall[0]),
              median(wall[1]), median(wall_ratio), median(cpu[0]), median(cpu[1]),
              median(cpu_ratio), ddp.buckets().size());
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

// The time of a step, the GPU's work included.
void print_step(const char* name, const std::function<nn::Sequential()>& make,
                const torch::Tensor& input, int steps, ddprun::ProcessGroup& group) {
  const auto device = ddprun::torch::device_of(group);
  auto model = make();
  model->to(device);
  Step step(model, input.to(device));
  step.y = step.y.to(device);
  ddprun::torch::DistributedDataParallel<nn::SequentialImpl> ddp(group, step.model);
  const auto run = [&](int times) {
    for (int i = 0; i < times; ++i) {
      step.run([&] { return ddp(step.x); }, [&] { ddp.zero_grad(); });
    }
    if (device.is_cuda()) torch::cuda::synchronize(device.index());
  };
  run(10);
  group.barrier();
  const auto start = Clock::now();
  run(steps);
  const std::chrono::duration<double, std::milli> time = Clock::now() - start;
  if (group.rank() == 0) std::printf("step %s: %.4f ms\n", name, time.count() / steps);
}

int print_steps(int steps) {
  ddprun::InitOptions options;
  if (torch::cuda::device_count() > 0) options.backend = "nccl";
  auto group = ddprun::ProcessGroup::init(options);
  print_step("ConvNet", conv_net, torch::randn({100, 1, 28, 28}), steps, group);
  print_step("perceptron", perceptron, torch::randn({32, 2040}), steps, group);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 2 && std::string(argv[1]) == "step") return print_steps(std::atoi(argv[2]));
  const int rounds = argc > 1 ? std::atoi(argv[1]) : 60;
  torch::set_num_threads(1);
  torch::manual_seed(1);
  auto group = ddprun::ProcessGroup::init();
  std::printf("%-22s %9s %9s %8s %12s %9s %8s   %s\n", "model", "bare", "DDP noop", "ratio",
              "bare cpu", "DDP cpu", "ratio", "buckets; ms, medians");
  compare("ConvNet, batch 100", conv_net, torch::randn({100, 1, 28, 28}), rounds, group);
  compare("perceptron, batch 32", perceptron, torch::randn({32, 2040}), rounds, group);
  cost_of_timer(group);
}
