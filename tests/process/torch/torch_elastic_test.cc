// Jobs of libtorch: what a step leaves behind does not depend on the number of ranks. Ranks are
// processes, for libtorch's generator is one a process; the cases that fork come first, for a child
// cannot compute gradients if its parent has.

#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <fstream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "common/bundle.h"
#include "ddprun/torch.h"
#include "tests/support/forked_ranks.h"

namespace {

constexpr std::int64_t kSamples = 50, kFeatures = 6;

// With everything that may depend on which rank computes what: batch statistics, random numbers, a
// weight that no shard or only some use, buffers that are constant, counted or averaged.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    torch::manual_seed(3);
    first = register_module("first", torch::nn::Linear(kFeatures, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    last = register_module("last", torch::nn::Linear(16, 1));
    rare = register_parameter("rare", torch::ones({1}));
    unused = register_parameter("unused", torch::ones({2}));
    constant = register_buffer("constant", torch::full({3}, 1 / 3.0));
  }
  at::Tensor forward(const at::Tensor& x, bool with_rare) {
    const at::Tensor one = first(x);
    const at::Tensor two = x.size(0) > 1 ? norm(one) : one;  // One sample has no variance.
    const at::Tensor out = last(torch::dropout(torch::relu(two), 0.3, is_training()));
    return with_rare ? out * rare : out;
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
  at::Tensor rare, unused, constant;
};
TORCH_MODULE(Net);

}  // namespace

namespace ddprun::test {
namespace {

std::string bytes_of(const Net& net) {
  std::ostringstream text;
  auto tensors = net->named_parameters();
  for (const auto& item : tensors) text << item.key() << " " << item.value().sum() << "\n";
  for (const auto& item : net->named_buffers()) text << item.key() << " " << item.value() << "\n";
  const auto hash = [](const at::Tensor& t) {
    const at::Tensor flat = t.detach().contiguous();
    return std::hash<std::string>()({static_cast<const char*>(flat.data_ptr()), flat.nbytes()});
  };
  for (const auto& item : tensors) text << hash(item.value()) << "\n";
  for (const auto& item : net->named_buffers()) text << hash(item.value()) << "\n";
  return text.str();
}

at::Tensor rows_of(const std::vector<Sample>& samples) {
  std::vector<std::int64_t> indices;
  for (const Sample& sample : samples) indices.push_back(sample.index);
  return ::torch::tensor(indices);
}

struct Data {
  at::Tensor x, y;
  Data() {
    ::torch::manual_seed(4);
    x = ::torch::randn({kSamples, kFeatures});
    y = x.sum(1, true);
  }
  at::Tensor loss(Net& net, const std::vector<Sample>& samples) const {
    const at::Tensor rows = rows_of(samples);
    const bool with_rare = samples.front().index % 7 == 0;
    return ::torch::mse_loss(net->forward(x.index_select(0, rows), with_rare),
                             y.index_select(0, rows));
  }
};

GlobalBatches batches() {  // The last of an epoch has 2 samples, fewer than there are shards.
  return GlobalBatches(
      {.sets = {{.length = kSamples}}, .global_batch = 16, .shards = 4, .seed = 5});
}

elastic::JobOptions options_of(const std::string& store, int rank, int world_size) {
  return {.init = {.init_method = "file://" + store, .rank = rank, .world_size = world_size}};
}

// Twelve steps, then what is left of them and the losses on the way.
enum class Kind { adam, adamw, sharded };

std::string train(const elastic::JobOptions& options, int threads, Kind kind) {
  ::torch::set_num_threads(threads);
  Net net;
  const Data data;
  const auto adamw_options = ::torch::optim::AdamWOptions(0.01).amsgrad(true);
  ::torch::optim::Adam adam(net->parameters(), ::torch::optim::AdamOptions(0.01));
  ::torch::optim::AdamW adamw(net->parameters(), adamw_options);
  elastic::Job job(options);
  ddprun::torch::keep(job, "net", net);
  std::optional<ddprun::torch::ShardedAdamW> sharded;
  if (kind == Kind::adam) ddprun::torch::keep(job, "adam", adam);
  if (kind == Kind::adamw) ddprun::torch::keep(job, "adamw", adamw);
  if (kind == Kind::sharded) sharded.emplace(job, *net, adamw_options, 5);
  const auto apply = [&] {
    if (kind == Kind::adam) adam.step();
    if (kind == Kind::adamw) adamw.step();
    if (sharded) sharded->apply();
  };
  ddprun::torch::ElasticGradients gradients(job, net, batches(), {.seed = 6});
  std::ostringstream text;
  job.run(12, [&](elastic::Step& step) {
    const auto result =
        gradients.backward(step, [&](const auto& samples) { return data.loss(net, samples); });
    if (sharded) sharded->update(step);
    gradients.commit(step, apply);
    text.precision(12);
    text << result.loss << " " << result.attempts << "\n";
  });
  return text.str() + bytes_of(net);
}

// The parent understands errors of ddprun alone.
std::string trained_by(const elastic::JobOptions& options, int threads = 1,
                       Kind kind = Kind::adam) {
  try {
    return train(options, threads, kind);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    throw Error(ErrorKind::system, {}, error.what());
  }
}

// What each rank of a world got.
std::vector<std::string> train_in_processes(int world_size, Kind kind = Kind::adam) {
  const TemporaryDirectory folder;
  const auto file = [&](int rank) { return folder / ("of" + std::to_string(rank)); };
  ForkedRanks ranks({.world_size = world_size}, [&](ProcessGroup& group, const auto&) {
    const int rank = group.rank();
    std::ofstream(file(rank)) << trained_by(options_of(folder / "store", rank, world_size), 1,
                                            kind);
  });
  std::vector<std::string> texts;
  for (int rank = 0; rank < world_size; ++rank) {
    const Report report = ranks.report(rank);
    CHECK(report.came);
    CHECK(report.text == "");
    std::ostringstream text;
    text << std::ifstream(file(rank)).rdbuf();
    texts.push_back(text.str());
  }
  return texts;
}

TEST_CASE("Elastic gradients: the number of ranks changes no bit of weights, buffers and losses",
          "[torch]") {
  const std::string alone = train_in_processes(1).front();
  INFO(alone);
  CHECK(alone.find("norm.num_batches_tracked 9") != std::string::npos);
  for (const int world_size : {2, 3, 4}) {
    for (const std::string& text : train_in_processes(world_size)) CHECK(text == alone);
  }
}

TEST_CASE("Sharded AdamW: it has the bits of AdamW, with any number of ranks", "[torch]") {
  const std::string plain = train_in_processes(1, Kind::adamw).front();
  for (const int world_size : {1, 2, 3, 4}) {
    for (const std::string& text : train_in_processes(world_size, Kind::sharded)) {
      CHECK(text == plain);
    }
  }
}

TEST_CASE("Elastic gradients: ranks with different numbers of threads find out", "[torch]") {
  const TemporaryDirectory folder;
  ForkedRanks ranks({.world_size = 2}, [&](ProcessGroup& group, const auto&) {
    trained_by(options_of(folder / "store", group.rank(), 2), 1 + group.rank());
  });
  for (const int rank : {0, 1}) {
    const Report report = ranks.report(rank);
    CHECK(report.threw);
    CHECK(report.kind == ErrorKind::mismatch);
  }
}

TEST_CASE("Elastic gradients: they are those of one batch, weighted by samples", "[torch]") {
  ::torch::set_num_threads(1);
  Net net;
  net->eval();  // Without dropout and batch statistics a batch is the sum of its shards.
  const Data data;
  elastic::Job job;
  ddprun::torch::ElasticGradients gradients(job, net, batches());
  job.run(4, [&](elastic::Step& step) {
    const auto result = gradients.backward(step, [&](const std::vector<Sample>& samples) {
      const at::Tensor of = rows_of(samples);
      return ::torch::mse_loss(net->forward(data.x.index_select(0, of), false),
                               data.y.index_select(0, of));
    });
    const at::Tensor summed = net->first->weight.grad().clone();
    const at::Tensor of = rows_of(batches().batch(step.number()));
    net->zero_grad();
    const at::Tensor loss = ::torch::mse_loss(net->forward(data.x.index_select(0, of), false),
                                              data.y.index_select(0, of));
    loss.backward();
    CHECK(::torch::allclose(summed, net->first->weight.grad(), 1e-5, 1e-6));
    CHECK(result.loss == Approx(loss.item<double>()).epsilon(1e-5));
    CHECK(result.finite);
    CHECK(result.attempts == (step.number() == 0 ? 2 : 1));
    gradients.commit(step, [] {});
  });
}

TEST_CASE("Elastic gradients: running averages take in the mean of the shards' statistics once",
          "[torch]") {
  ::torch::set_num_threads(1);
  Net net;
  const Data data;
  elastic::Job job;
  ddprun::torch::ElasticGradients gradients(job, net, batches());
  const at::Tensor before = net->norm->running_mean.clone();
  at::Tensor expected = before * 0.9;
  job.run(1, [&](elastic::Step& step) {
    gradients.backward(step,
                       [&](const std::vector<Sample>& samples) { return data.loss(net, samples); });
    CHECK(::torch::equal(net->norm->running_mean, before));  // Not before the commit.
    const ::torch::NoGradGuard no_grad;
    for (int shard = 0; shard < 4; ++shard) {
      const at::Tensor rows = rows_of(batches().shard(0, shard));
      const at::Tensor mean = net->first(data.x.index_select(0, rows)).mean(0);
      expected += 0.1 * mean * static_cast<double>(rows.numel()) / 16;
    }
    gradients.commit(step, [] {});
  });
  CHECK(::torch::allclose(net->norm->running_mean, expected, 1e-5, 1e-6));
  CHECK(net->norm->num_batches_tracked.item<std::int64_t>() == 1);
  CHECK(::torch::equal(net->constant, ::torch::full({3}, 1 / 3.0)));
}

// Weights after `steps` steps, of which the last checkpoint in `folder`, if any, has some; writes
// one at their end. The features are so different in size that small gradients are rounded to the
// unit.
at::Tensor train_from(const std::string& folder, std::int64_t steps, bool saves_units) {
  namespace dt = ddprun::torch;
  ::torch::manual_seed(4), ::torch::set_num_threads(1);
  const at::Tensor x = ::torch::randn({64, 32}), y = x.sum(1, true);
  for (int i = 0; i < 32; ++i) x.select(1, i).mul_(std::ldexp(1.0F, -i));
  ::torch::nn::Linear net(32, 1);
  {
    const ::torch::NoGradGuard no_gradients;
    for (auto& p : net->parameters()) p.zero_();
  }
  ::torch::optim::SGD sgd(net->parameters(), ::torch::optim::SGDOptions(0.05).momentum(0.9));
  elastic::Job job;
  dt::keep(job, "net", net);
  dt::keep(job, "sgd", sgd);
  dt::ElasticGradients gradients(
      job, net, GlobalBatches({.sets = {{.length = 64}}, .global_batch = 16, .shards = 4}));
  const auto found = saves_units ? dt::load_latest(folder, {net, sgd, gradients})
                                 : dt::load_latest(folder, {net, sgd});
  if (found) job.resume(*found);
  job.between(steps, [&](ProcessGroup& group) {
    CheckpointWriter writer(group, folder);
    if (saves_units) dt::save_async(group, writer, job.committed(), {net, sgd, gradients});
    if (!saves_units) dt::save_async(group, writer, job.committed(), {net, sgd});
    writer.wait();
  });
  job.run(steps, [&](elastic::Step& step) {
    gradients.backward(step, [&](const std::vector<Sample>& samples) {
      const at::Tensor rows = dt::indices(samples);
      return ::torch::mse_loss(net->forward(x.index_select(0, rows)), y.index_select(0, rows));
    });
    gradients.commit(step, [&] { sgd.step(); });
  });
  return net->weight.detach().clone();
}

TEST_CASE(
    "Elastic gradients: a job that goes on from a checkpoint has the bits of one that did not "
    "stop, for it has the units of the sums",
    "[torch]") {
  constexpr std::int64_t kSteps = 40;
  const TemporaryDirectory folder;
  const at::Tensor whole = train_from(folder / "whole", kSteps, true);
  int different = 0;
  for (const std::int64_t at : {1, 5, 10, 15, 20, 25, 30, 35, 39}) {
    INFO("resumed at step " << at);
    const std::string with = folder / ("with" + std::to_string(at)), without = with + "out";
    train_from(with, at, true);
    CHECK(::torch::equal(train_from(with, kSteps, true), whole));
    train_from(without, at, false);
    different += ::torch::equal(train_from(without, kSteps, false), whole) ? 0 : 1;
  }
  CHECK(different > 0);  // Otherwise this case would show nothing.
}

TEST_CASE("Torch checkpoint: without a group each process loads the newest that stays", "[torch]") {
  namespace dt = ddprun::torch;
  const TemporaryDirectory directory;
  const std::string folder = directory / "run";
  ProcessGroup group = ProcessGroup::init(options_of(directory / "store", 0, 1).init);
  ::torch::nn::Linear net(2, 1);
  ::torch::nn::Linear other(2, 1);
  CHECK_FALSE(dt::load_latest(folder, {other}));
  // What trains meanwhile takes the one away that is being read.
  struct Newer {
    std::string state() const { return {}; }
    void restore(std::string_view) {
      if (std::exchange(is_written, true)) return;
      write();
    }
    std::function<void()> write;
    bool is_written = false;
  } newer;
  const auto write = [&](std::int64_t step) {
    CheckpointWriter writer(group, folder, {.keep = 1});
    dt::save_async(group, writer, step, {newer, net});
    writer.wait();
  };
  newer.write = [&] {
    const ::torch::NoGradGuard no_gradients;
    net->weight.fill_(7);
    write(7);
  };
  write(3);
  CHECK(dt::load_latest(folder, {newer, other}) == 7);
  CHECK(::torch::equal(other->weight, net->weight));
  ::torch::nn::Linear unlike(3, 1);
  CHECK_THROWS_AS(dt::load_latest(folder, {newer, unlike}), Error);
}

TEST_CASE("Elastic gradients: a pass that fails leaves the kept buffers as they were", "[torch]") {
  Net net;
  const Data data;
  elastic::Job job;
  ddprun::torch::ElasticGradients gradients(job, net, batches());
  const at::Tensor before = net->norm->running_mean.clone();
  int passes = 0;
  CHECK_THROWS_AS(job.run(1,
                          [&](elastic::Step& step) {
                            gradients.backward(step, [&](const std::vector<Sample>& samples) {
                              const at::Tensor loss = data.loss(net, samples);
                              if (++passes == 3) throw std::runtime_error("no more samples");
                              return loss;
                            });
                          }),
                  std::runtime_error);
  CHECK(::torch::equal(net->norm->running_mean, before));
}

TEST_CASE("Elastic gradients: a loss that is not finite is found, and spoils no buffer",
          "[torch]") {
  Net net;
  const Data data;
  elastic::Job job;
  ddprun::torch::ElasticGradients gradients(job, net, batches());
  bool stepped = false;
  job.run(1, [&](elastic::Step& step) {
    const auto result = gradients.backward(step, [&](const std::vector<Sample>& samples) {
      return data.loss(net, samples) * std::numeric_limits<float>::infinity();
    });
    CHECK(!result.finite);
    gradients.commit(step, [&] { stepped = true; });
  });
  CHECK(stepped);
  CHECK(net->norm->num_batches_tracked.item<std::int64_t>() == 0);
}

TEST_CASE("Elastic gradients: a bundle has the buffers of the last committed step", "[torch]") {
  for (const bool throws : {true, false}) {
    const TemporaryDirectory directory;
    ::setenv(kBundlesVariable, (directory / "").c_str(), 1);
    Net net;
    const Data data;
    elastic::Job job;
    ddprun::torch::keep(job, "net", net);
    ddprun::torch::ElasticGradients gradients(job, net, batches());
    const at::Tensor before = net->norm->running_mean.clone();
    int passes = 0;
    try {
      job.run(1, [&](elastic::Step& step) {
        gradients.backward(step, [&](const std::vector<Sample>& samples) {
          const at::Tensor loss = data.loss(net, samples);
          if (++passes < 3) return loss;
          if (throws) throw std::runtime_error("no more samples");
          return loss * std::numeric_limits<float>::quiet_NaN();
        });
        gradients.commit(step, [] {});
      });
    } catch (const std::runtime_error&) {
    }
    ::unsetenv(kBundlesVariable);
    const std::string file = read_file(directory / "none-step-0.bundle").value();
    const BundleStart start = decode_start(file, file.size()).value();
    CHECK(start.bundle.shard == 2);
    CHECK(start.bundle.hash.empty() == throws);
    CHECK(start.bundle.why ==
          (throws ? "std::runtime_error: no more samples" : "the gradient is not finite"));
    std::uint64_t at = start.items_at;
    bool is_found = false;
    for (const Bundle::Item& item : start.bundle.items) {
      if (item.name == "net.norm.running_mean") {
        is_found =
            file.compare(at, item.bytes,
                         {static_cast<const char*>(before.data_ptr()), before.nbytes()}) == 0;
      }
      at += item.bytes;
    }
    CHECK(is_found);
  }
}

TEST_CASE("Elastic gradients: what they cannot sum is refused by name", "[torch]") {
  using Catch::Matchers::Contains;
  elastic::Job job;
  Net net;
  net->last->to(at::kDouble);
  CHECK_THROWS_WITH(ddprun::torch::ElasticGradients(job, net, batches()),
                    Contains("parameter last.weight is not of f32"));
  Net other;
  other->register_buffer("wave", ::torch::zeros({2}, at::kComplexFloat));
  CHECK_THROWS_WITH(ddprun::torch::ElasticGradients(job, other, batches()),
                    Contains("buffer wave is not a dense tensor of real numbers"));
}

}  // namespace
}  // namespace ddprun::test
