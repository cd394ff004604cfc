// The libtorch adapter's sampler with libtorch's data loader. Ranks are threads.

#include <torch/torch.h>
// libtorch has a CHECK of its own.
#undef CHECK
#include <catch2/catch.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "ddprun/torch.h"
#include "tests/support/ranks.h"

namespace {

using ddprun::Error;
using ddprun::ErrorKind;
using ddprun::ProcessGroup;
using ddprun::test::outcome;
using ddprun::test::Ranks;
using Sampler = ddprun::torch::DistributedSampler;

// Threads report through this, as Catch2 may not be used there.
void require(bool ok, const std::string& text) {
  if (!ok) throw Error(ErrorKind::mismatch, {}, text);
}

// Sample i is the number i.
auto numbers(std::int64_t count) {
  return torch::data::datasets::TensorDataset(torch::arange(count))
      .map(torch::data::transforms::Stack<torch::data::TensorExample>());
}

template <class Loader>
std::vector<std::int64_t> read_all(Loader& loader) {
  std::vector<std::int64_t> read;
  for (auto& batch : loader) {
    for (std::int64_t i = 0; i < batch.data.size(0); ++i) {
      read.push_back(batch.data[i].template item<std::int64_t>());
    }
  }
  return read;
}

}  // namespace

TEST_CASE("Torch sampler: a data loader reads this rank's samples, in the epoch's order") {
  const auto errors = Ranks{}.run([](ProcessGroup& group) {
    Sampler sampler(group, 103, {.seed = 7});
    auto loader = torch::data::make_data_loader(
        numbers(103), sampler, torch::data::DataLoaderOptions().batch_size(8).workers(2));
    ddprun::DistributedSampler expected(group, 103, {.seed = 7});
    for (const std::int64_t epoch : {0, 1, 5}) {
      sampler.set_epoch(epoch);
      expected.set_epoch(epoch);
      require(read_all(*loader) == expected.indices(), "epoch " + std::to_string(epoch));
      require(sampler.state().consumed == 0, "reading ahead counts as progress");
    }
  });
  CHECK(outcome(errors) == "all well");
}

TEST_CASE("Torch sampler: its saved state continues an epoch, also with other ranks") {
  const auto torn = Ranks{}.run([](ProcessGroup& group) {
    Sampler sampler(group, 40);
    sampler.set_epoch(3);
    sampler.advance(7);
    torch::serialize::OutputArchive saved;
    saved << sampler;
    std::stringstream bytes;
    saved.save_to(bytes);
    torch::serialize::InputArchive archive;
    archive.load_from(bytes);

    const auto alone = group.split(group.rank());
    Sampler other(*alone, 40);
    auto loader = torch::data::make_data_loader(numbers(40), other, 4);
    archive >> other;
    require(other.state().epoch == 3 && other.state().consumed == 14, "the state");
    const auto order = ddprun::random_permutation(40, 3);
    require(read_all(*loader) == std::vector<std::int64_t>(order.begin() + 14, order.end()),
            "the rest of the epoch");
  });
  CHECK(outcome(torn) == "all well");
}

TEST_CASE("Torch sampler: without a loader it yields batches, the last one smaller") {
  const auto errors = Ranks{.world_size = 1}.run([](ProcessGroup& group) {
    Sampler sampler(group, 5, {.shuffle = false});
    using Batch = std::vector<std::size_t>;
    require(*sampler.next(3) == Batch{0, 1, 2} && *sampler.next(3) == Batch{3, 4}, "batches");
    require(!sampler.next(3), "a batch after the last");
    sampler.reset();
    require(*sampler.next(9) == Batch{0, 1, 2, 3, 4}, "all of them again");
    try {
      sampler.reset(6);
      require(false, "another length");
    } catch (const Error& error) {
      require(error.kind() == ErrorKind::unsupported, error.what());
    }
  });
  CHECK(outcome(errors) == "all well");
}
