// elastic: the ConvNet of train, on ranks that may come and go. The weights after a number of steps
// are the same, bit for bit, whatever the number of ranks was.
//
//   ddprun --nproc-per-node 4 --max-restarts 100 elastic [steps] [folder of IDX files]
//       [folder of checkpoints]
//
// Without a folder, or with "-", it learns made-up images. Kill a worker, and the others continue.
// Started again with the same folder of checkpoints, it goes on from the newest, with the same bits
// as if it had not stopped. Exit status: 0 trained, 1 failed.

#include <torch/torch.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "ddprun/torch.h"
#include "examples/batch.h"
#include "examples/idx.h"
#include "examples/model.h"

namespace {

// Each digit is a bright square at a place of its own, in noise; every fifth label is wrong.
examples::LabelledImages made_up_images(std::uint32_t count) {
  examples::LabelledImages set{{{count, 28, 28}, {}}, {}};
  for (std::uint32_t i = 0; i < count; ++i) {
    ddprun::RandomStream random(1, 0, i);
    const std::uint32_t digit = random() % 10, left = digit % 5 * 5, top = digit / 5 * 14;
    for (std::uint32_t p = 0; p < 28 * 28; ++p) {
      const bool bright = p % 28 - left < 8 && p / 28 - top < 14;
      set.images.bytes.push_back(static_cast<std::uint8_t>(random() % 128 + (bright ? 100 : 0)));
    }
    set.labels.push_back(static_cast<std::uint8_t>(i % 5 == 0 ? random() % 10 : digit));
  }
  return set;
}

examples::Batch batch_of(const examples::LabelledImages& set,
                         const std::vector<ddprun::Sample>& samples) {
  std::vector<std::int64_t> indices;
  for (const ddprun::Sample& sample : samples) indices.push_back(sample.index);
  return examples::make_batch(set, indices.data(), static_cast<std::int64_t>(indices.size()),
                              examples::Layout::plain);
}

void train(std::int64_t steps, const examples::LabelledImages& set,
           const std::string& checkpoints) {
  torch::set_num_threads(
      1);  // The bits of a gradient depend on it; the number of ranks may change.
  torch::manual_seed(7);
  examples::ConvNet model(examples::Norm::batch);
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9));
  const ddprun::GlobalBatches batches({.sets = {{.length = static_cast<std::int64_t>(set.size())}},
                                       .global_batch = 64,
                                       .shards = 8,
                                       .seed = 7});

  ddprun::elastic::Job job;
  ddprun::torch::keep(job, "model", model);
  ddprun::torch::keep(job, "optimizer", sgd);
  ddprun::torch::ElasticGradients gradients(job, model, batches);
  if (!checkpoints.empty()) {
    // Before there is a group: each process loads, and the newest state counts.
    const auto step = ddprun::torch::load_latest(checkpoints, {model, sgd, gradients});
    if (step) job.resume(*step);
    job.between(20, [&](ddprun::ProcessGroup& group) {
      ddprun::CheckpointWriter writer(group, checkpoints, {.keep = 2});  // Of this round's ranks.
      ddprun::torch::save_async(group, writer, job.committed(), {model, sgd, gradients});
      writer.wait();
    });
  }
  job.run(steps, [&](ddprun::elastic::Step& step) {
    const auto result = gradients.backward(step, [&](const std::vector<ddprun::Sample>& samples) {
      const examples::Batch batch = batch_of(set, samples);
      return torch::nn::functional::cross_entropy(model->forward(batch.images), batch.labels);
    });
    gradients.commit(step, [&] { sgd.step(); });
    if (step.rank() != 0 || step.number() % 20 != 0) return;
    std::printf("step %" PRId64 ", %d ranks: loss %.9g\n", step.number(), step.world_size(),
                result.loss);
    std::fflush(stdout);
  });
  if (job.rank() != 0) return;
  std::printf("%" PRId64 " steps: hash %016" PRIx64 "\n", steps, examples::hash_of(model));
}

// Of an argument that is not a number of steps, such as --help.
int explain(const std::string& argument) {
  const bool asked = argument == "--help" || argument == "-h";
  std::fprintf(asked ? stdout : stderr,
               "usage: elastic [STEPS] [FOLDER_OF_IDX_FILES or -] [FOLDER_OF_CHECKPOINTS]\n");
  return asked ? 0 : 2;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string first = argc > 1 ? argv[1] : "100";
  if (first.find_first_not_of("0123456789") != std::string::npos) return explain(first);
  try {
    const std::string images = argc > 2 ? argv[2] : "-";
    const auto set =
        images == "-" ? made_up_images(2000) : examples::read_fashion_mnist(images, "train");
    train(std::atoll(first.c_str()), set, argc > 3 ? argv[3] : "");
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "elastic: %s\n", e.what());
    return 1;
  }
}
