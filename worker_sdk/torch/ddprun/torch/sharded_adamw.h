#pragma once
// AdamW whose moments are divided among the ranks of an elastic job: stage 1 of ZeRO. Included
// through ddprun/torch.h.
//
//   ddprun::torch::keep(job, "model", *model);
//   ddprun::torch::ShardedAdamW adamw(job, *model, torch::optim::AdamWOptions(1e-3));
//   job.run(steps, [&](ddprun::elastic::Step& step) {
//     gradients.backward(step, loss);
//     adamw.update(step);                                // Collective; uses the gradients up.
//     gradients.commit(step, [&] { adamw.apply(); });
//   });

#include "ddprun/cxx20.h"

#include <torch/torch.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "ddprun/elastic/job.h"
#include "ddprun/elastic/sharded.h"
#include "ddprun/torch/tensor.h"
#include "ddprun/torch/zero_redundancy_optimizer.h"

namespace ddprun::torch {

/// The weights have the bits of torch::optim::AdamW of all parameters, for every number of ranks.
/// Of the moments each rank has a part, and a copy of another rank's, from which they come when
/// that rank is lost; docs/elastic.md describes what is lost with two ranks at once.
class ShardedAdamW {
 public:
  /// Construct it before job.run(), which it must outlive. For contiguous parameters of f32 in host
  /// memory. `shards`: the number of parts, at least the largest number of ranks. `name`: of the
  /// moments, if a job has several such optimizers. A job with it cannot resume() from a checkpoint
  /// of the program's own, which has no moments.
  ShardedAdamW(elastic::Job& job, const ::torch::nn::Module& module,
               const ::torch::optim::AdamWOptions& options, int shards = 64,
               const std::string& name = "moments")
      : options_(options) {
    for (const auto& [of, p] : detail::each_once(module.named_parameters())) {
      if (!p.requires_grad()) continue;
      if (p.scalar_type() != at::kFloat || !p.is_cpu() || !p.is_contiguous()) {
        throw Error(ErrorKind::unsupported, {.operation = "ShardedAdamW"},
                    "parameter " + of + " is not of contiguous f32 in host memory");
      }
      parameters_.push_back(p);
      count_ += static_cast<std::size_t>(p.numel());
    }
    const auto keep = [&](const char* which) {
      moments_.push_back(&job.keep_sharded(name + which, {.count = count_, .shards = shards}));
    };
    keep(" exp_avg"), keep(" exp_avg_sq");
    if (options.amsgrad()) keep(" max_exp_avg_sq");
    job.keep(
        name, [this] { return state(); }, [this](std::string_view bytes) { restore(bytes); });
  }
  ShardedAdamW(const ShardedAdamW&) = delete;
  ShardedAdamW& operator=(const ShardedAdamW&) = delete;

  /// Computes this rank's part of the step and gathers the new weights: collective, after
  /// backward(), before commit(). Afterwards the gradient of each parameter has its new weights.
  /// Not for a step that is left out, as one whose gradients are not finite: its moments are those
  /// of the step before.
  void update(elastic::Step& step) {
    const ::torch::NoGradGuard no_grad;
    if (updated_ >= 0 && updated_ < step.number()) {
      throw Error(ErrorKind::bad_argument, {.operation = "ShardedAdamW::update"},
                  "step " + std::to_string(updated_) +
                      " was committed with new moments but without apply(): call update() only in "
                      "steps in which apply() puts the new weights in their place");
    }
    for (const at::Tensor& p : parameters_) {
      if (p.grad().defined()) continue;
      throw Error(ErrorKind::bad_argument, {.operation = "ShardedAdamW::update"},
                  "a parameter has no gradient: call backward() before update()");
    }
    updated_ = step.number();
    std::vector<std::span<float>> after;
    for (elastic::Sharded* const each : moments_) after.push_back(each->next<float>());
    const std::size_t first = moments_.front()->first();
    learn_ranges(step, first, first + after.front().size());
    const std::vector<Piece> pieces = pieces_between(first, first + after.front().size());
    std::vector<at::Tensor> values;
    for (const Piece& piece : pieces) {
      values.push_back(piece.values.clone().set_requires_grad(true));
      values.back().mutable_grad() = piece.gradient;
    }
    if (!values.empty()) {
      ::torch::optim::AdamW local(values, options_);
      for (std::size_t i = 0; i < values.size(); ++i) {
        give_moments(local, values[i], pieces[i].first - first, after);
      }
      local.step();
    }
    for (std::size_t i = 0; i < pieces.size(); ++i) pieces[i].gradient.copy_(values[i].detach());
    gather(step.group());
  }

  /// Puts the new weights in place: within the function of commit().
  void apply() {
    const ::torch::NoGradGuard no_grad;
    for (const at::Tensor& p : parameters_) p.detach().copy_(p.grad());
    ++steps_;
    updated_ = -1;
  }

  /// Kept by the job: change them, such as the learning rate, in the function of commit() only.
  ::torch::optim::AdamWOptions& options() { return options_; }

 private:
  struct Piece {  // A part of a parameter, in place.
    std::size_t first = 0;
    at::Tensor values, gradient;
  };

  // What changes as a job trains.
  struct Rest {
    std::int64_t steps = 0;
    double lr = 0, beta1 = 0, beta2 = 0, eps = 0, weight_decay = 0;
  };

  std::string state() const {
    const auto& [beta1, beta2] = options_.betas();
    const Rest rest{steps_, options_.lr(), beta1, beta2, options_.eps(), options_.weight_decay()};
    return {reinterpret_cast<const char*>(&rest), sizeof rest};
  }

  void restore(std::string_view bytes) {
    Rest rest;
    if (bytes.size() != sizeof rest) {
      throw Error(ErrorKind::mismatch, {.operation = "ShardedAdamW"}, "its state has another size");
    }
    std::memcpy(&rest, bytes.data(), sizeof rest);
    steps_ = rest.steps;
    updated_ = -1;
    options_.lr(rest.lr).betas({rest.beta1, rest.beta2});
    options_.eps(rest.eps).weight_decay(rest.weight_decay);
  }

  static at::Tensor slice(const at::Tensor& tensor, std::size_t begin, std::size_t end) {
    return tensor.detach().view({-1}).slice(0, static_cast<std::int64_t>(begin),
                                            static_cast<std::int64_t>(end));
  }

  std::vector<Piece> pieces_between(std::size_t first, std::size_t last) const {
    std::vector<Piece> pieces;
    std::size_t at = 0;
    for (const at::Tensor& p : parameters_) {
      const std::size_t end = at + static_cast<std::size_t>(p.numel());
      const std::size_t from = std::max(first, at), to = std::min(last, end);
      if (from < to) {
        pieces.push_back({from, slice(p, from - at, to - at), slice(p.grad(), from - at, to - at)});
      }
      at = end;
    }
    return pieces;
  }

  void give_moments(::torch::optim::AdamW& local, const at::Tensor& values, std::size_t at,
                    const std::vector<std::span<float>>& after) const {
    using Key = typename std::decay_t<decltype(local.state())>::key_type;
    const auto part = [&](std::size_t i) {
      return ::torch::from_blob(after[i].data() + at, values.sizes(), at::kFloat);
    };
    auto moments = std::make_unique<::torch::optim::AdamWParamState>();
    moments->step(steps_);
    moments->exp_avg(part(0));
    moments->exp_avg_sq(part(1));
    if (after.size() > 2) moments->max_exp_avg_sq(part(2));
    local.state()[detail::state_key<Key>(values)] = std::move(moments);
  }

  void learn_ranges(elastic::Step& step, std::size_t first, std::size_t last) {
    if (round_ == step.round()) return;
    std::vector<std::int64_t> mine = {static_cast<std::int64_t>(first),
                                      static_cast<std::int64_t>(last)};
    ends_.resize(2 * static_cast<std::size_t>(step.world_size()));
    step.group().all_gather(ddprun::buffer(mine.data(), 2),
                            ddprun::buffer(ends_.data(), ends_.size()), {.on_host = true});
    round_ = step.round();
  }

  // Replaces the gradients of other ranks' parts by their new weights, a bucket at a time.
  void gather(ProcessGroup& group) {
    constexpr std::size_t kBucket = std::size_t{1} << 20;
    const auto length = static_cast<std::int64_t>(std::min(kBucket, count_));
    const at::Tensor all = at::empty({length}, at::kFloat), mine = at::empty({length}, at::kFloat);
    auto* const memory = all.data_ptr<float>();
    for (std::size_t begin = 0; begin < count_; begin += kBucket) {
      const std::size_t end = std::min(begin + kBucket, count_);
      const auto within = [&](std::int64_t at) {
        return std::clamp(static_cast<std::size_t>(at), begin, end);
      };
      std::vector<Buffer> parts;
      std::size_t low = 0, size = 0;
      for (int r = 0; r < group.world_size(); ++r) {
        const auto i = 2 * static_cast<std::size_t>(r);
        const std::size_t from = within(ends_[i]), to = std::max(from, within(ends_[i + 1]));
        parts.push_back(ddprun::buffer(memory + (from - begin), to - from));
        if (r == group.rank()) low = from, size = to - from;
      }
      copy(low, low + size, mine, true);
      group.all_gather(ddprun::buffer(mine.data_ptr<float>(), size), PartsBuffer(std::move(parts)),
                       {.on_host = true});
      copy(begin, end, all, false);
    }
  }

  // Gradients of the elements from `first` on, into or from `memory`.
  void copy(std::size_t first, std::size_t last, const at::Tensor& memory, bool into) const {
    for (const Piece& piece : pieces_between(first, last)) {
      const std::size_t at = piece.first - first;
      const at::Tensor part =
          slice(memory, at, at + static_cast<std::size_t>(piece.gradient.numel()));
      (into ? part : piece.gradient).copy_(into ? piece.gradient : part);
    }
  }

  ::torch::optim::AdamWOptions options_;
  std::vector<at::Tensor> parameters_;
  std::size_t count_ = 0;
  std::vector<elastic::Sharded*> moments_;
  std::int64_t steps_ = 0;
  std::int64_t updated_ = -1;  // A step whose new weights are not in their place.
  int round_ = -1;
  std::vector<std::int64_t> ends_;  // By rank, of its part, the first element and the one behind.
};

}  // namespace ddprun::torch
