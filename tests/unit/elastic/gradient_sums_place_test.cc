// GradientSums::first() and sum(): gradients that are taken in, and sums that stay, where they are.

#include <algorithm>
#include <atomic>
#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ddprun/elastic/gradient_sums.h"
#include "ddprun/elastic/random_stream.h"
#include "tests/support/ranks.h"

namespace ddprun::test {
namespace {

using Kind = GradientSums::Kind;
using Result = GradientSums::Result;
using Tensors = std::vector<std::vector<float>>;

const std::vector<std::size_t> kSizes = {700, 1, 0, 3000, 17};

Tensors gradients_of(std::int64_t step, int shard) {
  RandomStream random(5, static_cast<std::uint64_t>(step), static_cast<std::uint32_t>(shard));
  Tensors all;
  for (const std::size_t size : kSizes) {
    all.emplace_back(size);
    for (float& x : all.back()) x = random.uniform() - 0.5f;
  }
  return all;
}

std::vector<std::span<const float>> views(const Tensors& tensors) {
  return {tensors.begin(), tensors.end()};
}
std::vector<std::span<float>> writable(Tensors& tensors) {
  return {tensors.begin(), tensors.end()};
}

Tensors left_in_place(const GradientSums& sums) {
  Tensors all;
  for (std::size_t t = 0; t < kSizes.size(); ++t) {
    const auto sum = sums.sum(t);
    all.emplace_back(sum.get(), sum.get() + kSizes[t]);
  }
  return all;
}

// Puts the gradients where the first shard's are taken in, where there is such a place.
void add_there(GradientSums& sums, const Tensors& gradients) {
  std::vector<std::span<const float>> there = views(gradients);
  for (std::size_t t = 0; t < gradients.size(); ++t) {
    const auto place = sums.first(t);
    if (!place) continue;
    std::copy(gradients[t].begin(), gradients[t].end(), place.get());
    there[t] = {place.get(), gradients[t].size()};
  }
  sums.add(there);
}

std::vector<std::uint32_t> bits_of(const Tensors& tensors) {
  std::vector<std::uint32_t> all;
  for (const auto& tensor : tensors) {
    for (const float x : tensor) all.push_back(std::bit_cast<std::uint32_t>(x));
  }
  return all;
}

TEST_CASE("Gradient sums: what is left in place is what arrays would have", "[elastic]") {
  for (const bool exact : {true, false}) {
    for (const int shards : {1, 3, 4}) {  // Of 3 ranks: one has all, each has one, one has two.
      for (const std::size_t bucket_bytes : {std::size_t{4096}, std::size_t{1} << 20}) {
        for (const char* backend : {"shm", "cpu"}) {
          CAPTURE(exact, shards, bucket_bytes, backend);
          const Ranks ranks{.world_size = 3, .backend = backend};
          const auto errors = ranks.run([&](ProcessGroup& group) {
            GradientSums arrays(kSizes, {.exact = exact, .bucket_bytes = bucket_bytes});
            GradientSums places(kSizes, {.exact = exact, .bucket_bytes = bucket_bytes});
            arrays.use(group), places.use(group);
            for (std::int64_t step = 0; step < 6; ++step) {
              for (GradientSums* sums : {&arrays, &places}) {
                sums->begin();
                for (int shard = group.rank(); shard < shards; shard += 3) {
                  Tensors in = gradients_of(step, shard);
                  if (step == 3 && shard == 0) in[0][7] = std::nanf("");
                  const bool first = sums == &places && shard == group.rank();
                  first ? add_there(*sums, in) : sums->add(views(in));
                }
              }
              Tensors out = gradients_of(step, 99);  // To be overwritten.
              const Result one = arrays.reduce(group, writable(out), {.divide_by = 3});
              const Result other = places.reduce(group, {}, {.divide_by = 3});
              if (one.kind != other.kind) throw Error(ErrorKind::corrupt, {}, "another result");
              if (one.kind == Kind::over) continue;
              if (bits_of(left_in_place(places)) != bits_of(out)) {
                throw Error(ErrorKind::corrupt, {}, "other sums in step " + std::to_string(step));
              }
              arrays.commit(), places.commit();
            }
          });
          CHECK(outcome(errors) == "all well");
        }
      }
    }
  }
}

TEST_CASE("Gradient sums: each rank has a place for gradients where none is moved", "[elastic]") {
  const auto places = [](const Ranks& ranks, bool exact) {
    std::atomic<int> found = 0;
    const auto errors = ranks.run([&](ProcessGroup& group) {
      GradientSums sums({3, 0}, {.exact = exact});
      sums.use(group);
      sums.begin();
      if (sums.first(0)) ++found;
      if (sums.first(1)) found += 100;  // Nothing has no place.
      sums.add(views({{1, 2, 3}, {}}));
      try {
        sums.first(0);
        found += 1000;
      } catch (const Error& error) {
        if (error.kind() != ErrorKind::bad_argument) throw;
      }
    });
    return outcome(errors) == "all well" ? found.load() : -1;
  };
  CHECK(places({.world_size = 2, .backend = "shm"}, true) == 2);
  CHECK(places({.world_size = 2, .backend = "shm"}, false) == 2);
  CHECK(places({.world_size = 2, .backend = "cpu"}, false) == 2);
  CHECK(places({.world_size = 2, .backend = "gloo"}, true) == 0);
}

TEST_CASE("Gradient sums: there is nothing in place before a sum, nor after the next began",
          "[elastic]") {
  const auto errors = Ranks{.world_size = 1}.run([&](ProcessGroup& group) {
    std::shared_ptr<float> kept;
    {
      GradientSums sums({2}, {.exact = false});
      sums.use(group);
      const auto refused = [&] {
        try {
          sums.sum(0);
        } catch (const Error& error) {
          return error.kind() == ErrorKind::bad_argument;
        }
        return false;
      };
      bool right = refused();
      sums.begin();
      sums.add(views({{1, 2}}));
      Tensors out{{0, 0}};
      sums.reduce(group, writable(out));
      right = right && refused();  // They are in the array.
      sums.begin();
      sums.add(views({{3, 4}}));
      sums.reduce(group, {});
      kept = sums.sum(0);
      sums.begin();
      if (!right || !refused()) throw Error(ErrorKind::corrupt, {}, "sum() without a sum");
    }
    if (kept.get()[1] != 4) throw Error(ErrorKind::corrupt, {}, "the memory is gone");
  });
  CHECK(outcome(errors) == "all well");
}

}  // namespace
}  // namespace ddprun::test
