#pragma once
// DistributedSampler for libtorch's data loader. Included through ddprun/torch.h.
//
//   ddprun::torch::DistributedSampler sampler(group, *dataset.size(), {.seed = 7});
//   auto loader = torch::data::make_data_loader(dataset, sampler, /*batch size*/ 32);
//   for (std::int64_t epoch = sampler.state().epoch; epoch < epochs; ++epoch) {
//     sampler.set_epoch(epoch);
//     for (auto& batch : *loader) {
//       train(batch);
//       sampler.advance(batch.data.size(0));  // Needed only by checkpoints within an epoch.
//     }
//   }

#include <torch/torch.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "ddprun/distributed_sampler.h"
#include "ddprun/error.h"
#include "ddprun/process_group.h"

namespace ddprun::torch {
namespace detail {

// The parameter of a member function: c10::optional or std::optional, by libtorch's version.
template <class Member>
struct ParameterOf;
template <class Class, class Parameter>
struct ParameterOf<void (Class::*)(Parameter)> {
  using Type = Parameter;
};

}  // namespace detail

/// Yields the indices of ddprun::DistributedSampler, and so the order of PyTorch's. Copies share
/// epoch and progress, because a data loader keeps a copy: set_epoch() and load() take effect when
/// the loader begins to iterate. Loading ahead does not count as progress; only advance() does.
class DistributedSampler : public ::torch::data::samplers::Sampler<> {
  using Base = ::torch::data::samplers::Sampler<>;
  using Batch = decltype(std::declval<Base&>().next(1));
  using NewSize = detail::ParameterOf<decltype(&Base::reset)>::Type;

 public:
  /// Throws Error(bad_argument).
  DistributedSampler(const ProcessGroup& group, std::size_t length,
                     const SamplerOptions& options = {})
      : length_(length),
        shared_(std::make_shared<ddprun::DistributedSampler>(
            group, static_cast<std::int64_t>(length), options)) {}

  /// See ddprun::DistributedSampler.
  void set_epoch(std::int64_t epoch) { shared_->set_epoch(epoch); }
  void advance(std::int64_t count) { shared_->advance(count); }
  SamplerState state() const { return shared_->state(); }
  void load(const SamplerState& state) { shared_->load(state); }

  /// Starts at the state's position. Called by the data loader, as is next().
  void reset(NewSize new_size = {}) override {
    if (new_size && *new_size != length_) {
      throw Error(ErrorKind::unsupported, {.operation = "DistributedSampler"},
                  "a data set of another length needs another sampler");
    }
    order_ = shared_->indices();
    position_ = 0;
  }

  Batch next(std::size_t batch_size) override {
    if (!order_) reset();
    const std::size_t count = std::min(batch_size, order_->size() - position_);
    if (count == 0) return {};
    const auto first = order_->begin() + static_cast<std::ptrdiff_t>(position_);
    position_ += count;
    return std::vector<std::size_t>(first, first + static_cast<std::ptrdiff_t>(count));
  }

  /// The state, for torch::save() and torch::load().
  void save(::torch::serialize::OutputArchive& archive) const override {
    archive.write("epoch", c10::IValue(state().epoch));
    archive.write("consumed", c10::IValue(state().consumed));
  }
  void load(::torch::serialize::InputArchive& archive) override {
    c10::IValue epoch;
    c10::IValue consumed;
    archive.read("epoch", epoch);
    archive.read("consumed", consumed);
    load({.epoch = epoch.toInt(), .consumed = consumed.toInt()});
  }

 private:
  std::size_t length_;
  std::shared_ptr<ddprun::DistributedSampler> shared_;
  std::optional<std::vector<std::int64_t>> order_;  // For this copy, since reset().
  std::size_t position_ = 0;
};

}  // namespace ddprun::torch
