// What does it cost that a step's bits do not depend on the ranks? The same steps as
// ElasticGradients with exact sums, with plain ones, and as DistributedDataParallel, in turns.
//
//   bench_elastic_price MODEL [ranks] [rounds] [shards of a rank]   MODEL: convnet, or mlp of 64 MB
//
// Ranks are processes of one host, with one thread each. A turn is a few steps; prints medians over
// rounds of the slowest rank's milliseconds a step, and the ratio of neighbouring turns.

#include <sys/wait.h>
#include <torch/torch.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "ddprun/torch.h"
#include "examples/model.h"

namespace {

using Clock = std::chrono::steady_clock;
using Samples = std::vector<ddprun::Sample>;

constexpr int kStepsOfTurn = 4;

struct Setting {
  bool convnet = true;
  int batch() const { return convnet ? 64 : 8; }  // Else a slow BLAS is all that is measured.
  int ranks = 2, rounds = 11, shards = 1;         // Of a rank.
  std::string directory = {};
};

constexpr int kWide = 2300;  // Three layers of that: 16 million parameters.

class NetImpl : public torch::nn::Module {
 public:
  explicit NetImpl(bool convnet) {
    namespace nn = torch::nn;
    torch::manual_seed(7);
    if (convnet) {
      convnet_ = register_module("convnet", examples::ConvNet(examples::Norm::batch));
    } else {
      wide_ = register_module(
          "wide", nn::Sequential(nn::Linear(kWide, kWide), nn::ReLU(), nn::Linear(kWide, kWide),
                                 nn::ReLU(), nn::Linear(kWide, kWide)));
    }
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return wide_ ? wide_->forward(x) : convnet_->forward(x);
  }

 private:
  examples::ConvNet convnet_{nullptr};
  torch::nn::Sequential wide_{nullptr};
};
TORCH_MODULE(Net);

class Contestant {
 public:
  explicit Contestant(const Setting& setting)
      : model_(setting.convnet), sgd_(model_->parameters(), 0.01) {
    inputs_ = setting.convnet ? torch::randn({setting.batch(), 1, 28, 28})
                              : torch::randn({setting.batch(), kWide});
    labels_ = torch::randint(10, {setting.batch()}, torch::kInt64);
  }
  virtual ~Contestant() = default;
  virtual void turn() = 0;

 protected:
  at::Tensor loss(const at::Tensor& out, const at::Tensor& rows) const {
    return torch::nn::functional::cross_entropy(out, labels_.index_select(0, rows));
  }

  Net model_;
  torch::optim::SGD sgd_;
  at::Tensor inputs_, labels_;
};

// All groups and jobs of a process meet at a file of their own.
ddprun::InitOptions meeting(const Setting& setting, int rank, const std::string& name) {
  ddprun::InitOptions options;
  options.init_method = "file://" + setting.directory + "/" + name;
  options.backend = "shm";
  options.rank = rank;
  options.world_size = setting.ranks;
  return options;
}

class Elastic : public Contestant {
 public:
  Elastic(const Setting& setting, int rank, bool exact)
      : Contestant(setting),
        job_({.init = meeting(setting, rank, exact ? "exact" : "plain")}),
        gradients_(job_, model_,
                   ddprun::GlobalBatches({.sets = {{.length = setting.batch()}},
                                          .global_batch = setting.batch(),
                                          .shards = setting.ranks * setting.shards}),
                   {.exact = exact}) {
    ddprun::torch::keep(job_, "model", model_);
  }
  void turn() override {
    job_.run(job_.committed() + kStepsOfTurn, [&](ddprun::elastic::Step& step) {
      gradients_.backward(step, [&](const Samples& samples) {
        const auto rows = ddprun::torch::indices(samples);
        return loss(model_->forward(inputs_.index_select(0, rows)), rows);
      });
      gradients_.commit(step, [&] { sgd_.step(); });
    });
  }

 private:
  ddprun::elastic::Job job_;
  ddprun::torch::ElasticGradients gradients_;
};

class Ddp : public Contestant {
 public:
  Ddp(const Setting& setting, int rank)
      : Contestant(setting),
        group_(ddprun::ProcessGroup::init(meeting(setting, rank, "ddp"))),
        ddp_(group_, model_) {}
  void turn() override {
    const int part = static_cast<int>(inputs_.size(0)) / group_.world_size();
    const auto rows = torch::arange(group_.rank() * part, (group_.rank() + 1) * part);
    for (int step = 0; step < kStepsOfTurn; ++step) {
      ddp_.zero_grad();
      loss(ddp_(inputs_.index_select(0, rows)), rows).backward();
      sgd_.step();
    }
  }

 private:
  ddprun::ProcessGroup group_;
  ddprun::torch::DistributedDataParallel<NetImpl> ddp_;
};

// Milliseconds a step of the slowest rank.
double time_of(Contestant& contestant, ddprun::ProcessGroup& group) {
  group.barrier();
  const auto start = Clock::now();
  contestant.turn();
  double ms = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  group.all_reduce(ddprun::buffer(&ms, 1), ddprun::ReduceOp::max);
  return ms / kStepsOfTurn;
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void print(const char* name, const std::vector<double>& times, const std::vector<double>& ddp) {
  std::vector<double> ratios;
  for (std::size_t i = 0; i < times.size(); ++i) ratios.push_back(times[i] / ddp[i]);
  const auto [least, most] = std::minmax_element(ratios.begin(), ratios.end());
  std::printf("%-22s %8.2f ms a step, beside DDP %.2f [%.2f-%.2f]\n", name, median(times),
              median(ratios), *least, *most);
}

void rank_main(const Setting& setting, int rank) {
  torch::set_num_threads(1);
  auto group = ddprun::ProcessGroup::init(meeting(setting, rank, "clock"));
  Ddp ddp(setting, rank);
  Elastic plain(setting, rank, false), exact(setting, rank, true);
  std::vector<double> of_ddp, of_plain, of_exact;
  for (int round = -1; round < setting.rounds; ++round) {
    const double d = time_of(ddp, group), p = time_of(plain, group), e = time_of(exact, group);
    if (round < 0) continue;
    of_ddp.push_back(d), of_plain.push_back(p), of_exact.push_back(e);
  }
  if (rank != 0) return;
  std::printf("%s, %d ranks, %d shards each, %d rounds\n", setting.convnet ? "convnet" : "mlp",
              setting.ranks, setting.shards, setting.rounds);
  print("DDP", of_ddp, of_ddp), print("elastic, exact = false", of_plain, of_ddp);
  print("elastic, exact", of_exact, of_ddp);
}

}  // namespace

int main(int argc, char** argv) {
  const auto number = [&](int i, int otherwise) {
    return argc > i ? std::atoi(argv[i]) : otherwise;
  };
  const std::string model = argc > 1 ? argv[1] : "";
  Setting setting{.convnet = model == "convnet",
                  .ranks = number(2, 2),
                  .rounds = number(3, 11),
                  .shards = number(4, 1)};
  if ((model != "convnet" && model != "mlp") || setting.ranks < 1 || setting.rounds < 1 ||
      setting.shards < 1 || setting.batch() % setting.ranks != 0) {
    std::fprintf(stderr, "usage: %s convnet|mlp [ranks] [rounds] [shards of a rank]\n", argv[0]);
    return 2;
  }
  setting.directory = std::filesystem::temp_directory_path() / "ddprun_bench_XXXXXX";
  if (!::mkdtemp(setting.directory.data())) return 1;
  for (int rank = 0; rank < setting.ranks; ++rank) {
    if (::fork() != 0) continue;
    try {
      rank_main(setting, rank);
      std::fflush(stdout);
      ::_exit(0);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
      ::_exit(1);
    }
  }
  int failed = 0, status = 0;
  while (::wait(&status) > 0) failed |= status;
  std::filesystem::remove_all(setting.directory);
  return failed == 0 ? 0 : 1;
}
