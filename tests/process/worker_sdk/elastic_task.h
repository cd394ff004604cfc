#pragma once
// What elastic_worker computes: the same for every number of ranks, and nothing that a lost or
// repeated step would leave unchanged.

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ddprun/elastic/global_batches.h"
#include "common/checksum.h"

namespace ddprun::test {

constexpr std::int64_t kElasticSamples = 96;
constexpr std::int64_t kElasticBatch = 24;

inline GlobalBatches make_batches() {
  return GlobalBatches(
      {.sets = {{.length = kElasticSamples}}, .global_batch = kElasticBatch, .shards = 12});
}

struct ElasticState {
  explicit ElasticState(std::size_t count)
      : weights(count, 1), seen(static_cast<std::size_t>(kElasticSamples), 0) {}
  std::vector<std::int64_t> weights;
  std::vector<std::int64_t> seen;  // By index: in how many committed steps it was.
  std::vector<std::int64_t> history;
  std::int64_t lives = 0;  // Of the ranks of the last step, before the present ones.
};

// To the weights, then to what is seen, then to the lives.
using Contribution = std::vector<std::int64_t>;

inline Contribution no_contribution(const ElasticState& state, std::int64_t lives) {
  Contribution none(state.weights.size() + state.seen.size() + 1, 0);
  none.back() = lives;
  return none;
}

inline void add_shard(Contribution& part, const ElasticState& state,
                      const std::vector<Sample>& samples) {
  for (const Sample& sample : samples) {
    const auto index = static_cast<std::size_t>(sample.index);
    part[state.weights.size() + index] += 1;
    for (std::size_t k = index % 7; k < state.weights.size(); k += 7) {
      part[k] += (sample.index + 1) * (state.weights[k] % 1000 + 3);
    }
  }
}

inline void apply_step(ElasticState& state, const Contribution& whole) {
  for (std::size_t k = 0; k < state.weights.size(); ++k) {
    state.weights[k] = (state.weights[k] * 31 + whole[k]) % 1'000'000'007;
  }
  for (std::size_t i = 0; i < state.seen.size(); ++i) {
    state.seen[i] += whole[state.weights.size() + i];
  }
  state.history.push_back(state.weights.front());
  state.lives = whole.back();
}

inline std::string save_history(const ElasticState& state) {
  return {reinterpret_cast<const char*>(state.history.data()),
          state.history.size() * sizeof(std::int64_t)};
}
inline void load_history(ElasticState& state, std::string_view text) {
  state.history.resize(text.size() / sizeof(std::int64_t));
  text.copy(reinterpret_cast<char*>(state.history.data()), text.size());
}

// The momenta of sharded runs: from those before and the sums of the step, which they replace.
constexpr int kElasticShards = 11;
inline std::int64_t next_momentum(std::int64_t before, std::int64_t sum) {
  return (before * 7 + sum) % 1'000'000'007;
}
inline std::int64_t first_momentum(std::size_t index) {
  return static_cast<std::int64_t>(index % 13);
}

// Of all that is kept; `seen` in words.
inline std::string digest(const ElasticState& state) {
  std::int64_t least = state.seen.front(), most = least;
  for (const std::int64_t n : state.seen) least = n < least ? n : least, most = n > most ? n : most;
  const std::string history = save_history(state);
  return std::to_string(checksum(state.weights.data(),
                                             state.weights.size() * sizeof(std::int64_t))) +
         " " + std::to_string(checksum(history.data(), history.size())) + " seen " +
         std::to_string(least) + "-" + std::to_string(most);
}

// That of a run in which nothing happens, computed by one rank.
inline std::string quiet_digest(std::size_t weights, std::int64_t steps, bool is_sharded = false) {
  ElasticState state(weights);
  std::vector<std::int64_t> momenta;
  for (std::size_t k = 0; k < weights; ++k) momenta.push_back(first_momentum(k));
  const GlobalBatches batches = make_batches();
  for (std::int64_t step = 0; step < steps; ++step) {
    Contribution part = no_contribution(state, 0);
    for (int shard = 0; shard < batches.shards(); ++shard) {
      add_shard(part, state, batches.shard(step, shard));
    }
    for (std::size_t k = 0; is_sharded && k < weights; ++k) {
      part[k] = momenta[k] = next_momentum(momenta[k], part[k]);
    }
    apply_step(state, part);
  }
  return digest(state);
}

}  // namespace ddprun::test
