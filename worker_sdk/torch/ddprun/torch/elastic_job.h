#pragma once
// ddprun/elastic/job.h for libtorch: modules and optimizers as kept state, and the gradients of a
// step. Included through ddprun/torch.h.
//
//   ddprun::elastic::Job job;
//   ddprun::torch::keep(job, "model", *model);
//   ddprun::torch::keep(job, "optimizer", sgd);
//   ddprun::torch::ElasticGradients gradients(job, *model, batches);
//   job.run(steps, [&](ddprun::elastic::Step& step) {
//     gradients.backward(step, [&](const std::vector<ddprun::Sample>& samples) {
//       const auto [x, y] = load(samples);
//       return torch::cross_entropy_loss(model->forward(x), y);   // The mean over these samples.
//     });
//     gradients.commit(step, [&] { sgd.step(); });
//   });

#include <ATen/Version.h>
#include <torch/torch.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ddprun/cxx20.h"
#include "ddprun/elastic/global_batches.h"
#include "ddprun/elastic/gradient_sums.h"
#include "ddprun/elastic/job.h"
#include "ddprun/elastic/random_stream.h"
#include "ddprun/error.h"
#include "ddprun/torch/checkpoint.h"
#include "ddprun/torch/tensor.h"

namespace ddprun::torch {
namespace detail {

inline Buffer kept_bytes(const std::string& name, const at::Tensor& tensor) {
  if (!tensor.is_non_overlapping_and_dense()) {
    throw Error(ErrorKind::unsupported, {.operation = "ddprun::torch::keep"},
                name + " is sparse or overlaps itself");
  }
  const auto type = known_type(tensor.scalar_type());  // By which what is not finite is found.
  if (!type) return {tensor.data_ptr(), tensor.nbytes(), DataType::u8};
  return {tensor.data_ptr(), static_cast<std::size_t>(tensor.numel()), *type};
}

}  // namespace detail

/// Keeps the parameters and buffers of `module`, which must outlive job.run() and must no longer be
/// moved to another device or type.
inline void keep(elastic::Job& job, const std::string& name, const ::torch::nn::Module& module) {
  const auto each = [&](const detail::Named& tensors) {
    for (const auto& [part, tensor] : tensors) {
      if (!tensor.defined() || tensor.numel() == 0) continue;
      job.keep(name + "." + part, detail::kept_bytes(name + "." + part, tensor));
    }
  };
  each(detail::each_once(module.named_parameters()));
  each(detail::each_once(module.named_buffers()));
}
template <class Module>
void keep(elastic::Job& job, const std::string& name,
          const ::torch::nn::ModuleHolder<Module>& module) {
  keep(job, name, *module.ptr());
}
/// Keeps the state of `optimizer`, which must outlive job.run().
inline void keep(elastic::Job& job, const std::string& name, ::torch::optim::Optimizer& optimizer) {
  job.keep(
      name, [&optimizer] { return detail::serialised(optimizer); },
      [&optimizer](std::string_view bytes) {
        detail::deserialise(std::string(bytes), optimizer, detail::parameters_device(optimizer));
      });
}

/// The samples' indices in a tensor of i64: for index_select().
inline at::Tensor indices(const std::vector<Sample>& samples) {
  std::vector<std::int64_t> result;
  for (const Sample& sample : samples) result.push_back(sample.index);
  return ::torch::tensor(result, ::torch::kInt64);
}

}  // namespace ddprun::torch

namespace ddprun::torch::detail {

// The gradients of a step of an elastic job, whose bits do not depend on the number of ranks.

// The buffers of a module, such as the running averages of batch normalisation, if a batch is
// computed shard by shard: each shard's pass begins with those of the last committed step, and the
// step changes them once, by the mean of the shards' changes.
class ShardBuffers {
 public:
  explicit ShardBuffers(const ::torch::nn::Module& module) {
    for (const auto& [name, t] : each_once(module.named_buffers())) {
      if (!t.defined() || t.numel() == 0) continue;
      if (t.layout() != at::kStrided || t.is_quantized() || t.is_complex() || !t.is_cpu()) {
        throw Error(ErrorKind::unsupported, {.operation = "ElasticGradients"},
                    "buffer " + name + " is not a dense tensor of real numbers in host memory");
      }
      buffers_.push_back(t);
      change_.push_back(at::zeros({t.numel()}, at::kFloat));
    }
  }

  /// The change of each buffer, which the caller sums over shards and ranks.
  const std::vector<at::Tensor>& changes() const { return change_; }

  void begin() {
    before_.clear();
    for (const at::Tensor& t : buffers_) before_.push_back(t.detach().clone());
  }
  /// After a shard's pass: adds its change times `weight` to changes(), and restores the buffers.
  void take(double weight) {
    const ::torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      const at::Tensor now = buffers_[i].to(at::kDouble), then = before_[i].to(at::kDouble);
      change_[i].copy_((now - then).mul_(weight).reshape({-1}));
    }
    reset();
  }
  /// The buffers as they were at begin().
  void reset() {
    const ::torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < before_.size(); ++i) buffers_[i].copy_(before_[i]);
  }
  /// changes() has the sums: adds them to the buffers.
  void apply() {
    const ::torch::NoGradGuard no_grad;
    for (std::size_t i = 0; i < before_.size(); ++i) {
      at::Tensor sum = before_[i].to(at::kDouble) + change_[i].view(before_[i].sizes());
      if (!before_[i].is_floating_point()) sum.round_();
      buffers_[i].copy_(sum);
    }
  }

 private:
  std::vector<at::Tensor> buffers_, before_;
  std::vector<at::Tensor> change_;  // Flat, of f32.
};

}  // namespace ddprun::torch::detail

namespace ddprun::torch {

namespace detail {

// FNV-1a of what the bits of a shard's gradient depend on, apart from the program.
inline std::uint64_t hash_of_surroundings() {
  const std::string text = at::show_config() + std::to_string(at::get_num_threads());
  std::uint64_t h = 0xcbf29ce484222325U;
  for (const char c : text) h = (h ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return h;
}

inline void seed_generator(std::uint64_t seed) {
  // Not torch::manual_seed(), which queries all devices each time.
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU);
  const std::lock_guard lock(generator.mutex());
  generator.set_current_seed(seed);
}

}  // namespace detail

struct ElasticGradientOptions {
  std::uint64_t seed = 0;  ///< For libtorch's generator, seeded again per shard (dropout).
  bool exact = true;       ///< False: f32 sums, whose bits depend on the ranks.
};

/// The gradients of each step of a job: those of its global batch, whichever rank computes which
/// shard. For f32 parameters in host memory.
///
/// Each shard has a forward and backward pass of its own, with random numbers that depend on (seed,
/// step, shard), and begins with the module's buffers of the last committed step. The step changes
/// the buffers once, by the mean of the shards' changes: batch normalisation normalises each shard
/// by itself, and its running averages are updated with the mean of the shards' statistics. For the
/// same bits with any number of ranks, set the number of threads (::torch::set_num_threads),
/// because ddprun's default depends on the number of workers of a node. Ranks that differ in it, or
/// in libtorch's version, its libraries or the instruction set they use, get Error(mismatch).
class ElasticGradients {
 public:
  /// The mean loss over `samples`, those of one shard; differentiable.
  using Loss = std::function<at::Tensor(const std::vector<Sample>& samples)>;

  struct Result {
    double loss = 0;     ///< The mean over the global batch, the same on all ranks.
    bool finite = true;  ///< False: some gradient is infinite or NaN, on all ranks.
    int attempts = 1;    ///< 2 in the first step and where gradients grew a lot: it ran again.
  };

  /// Keeps the state of the sums in `job`, so construct it before job.run(), which it must outlive.
  ElasticGradients(elastic::Job& job, const ::torch::nn::Module& module, GlobalBatches batches,
                   const ElasticGradientOptions& options = {})
      : parameters_(trained(module)),
        buffers_(module),
        batches_(std::move(batches)),
        seed_(options.seed),
        sums_(sizes(), {.exact = options.exact, .equal = detail::hash_of_surroundings()}) {
    job.keep(
        "gradient sums", [this] { return sums_.state(); },
        [this](std::string_view state) { sums_.restore(state); });
  }
  template <class Module>
  ElasticGradients(elastic::Job& job, const ::torch::nn::ModuleHolder<Module>& module,
                   GlobalBatches batches, const ElasticGradientOptions& options = {})
      : ElasticGradients(job, *module.ptr(), std::move(batches), options) {}
  ElasticGradients(const ElasticGradients&) = delete;
  ElasticGradients& operator=(const ElasticGradients&) = delete;

  /// Computes this rank's shards and sums over all ranks: then `.grad` of each parameter has the
  /// gradient of the mean loss over the global batch, zeros if no shard had one, until the next
  /// backward(). Collective. Calls `loss` for each shard, and once more for each if the step must
  /// run again.
  Result backward(elastic::Step& step, const Loss& loss) {
    if (!round_ || *round_ != step.round()) {
      sums_.use(step.group());
      round_ = step.round();
    }
    buffers_.begin();
    for (Result result;; ++result.attempts) {
      sums_.begin();
      compute_shards(step, loss);
      const auto sum = step.reduce(sums_, {});
      require_all_shards(step, sum.shards);
      if (sum.kind == GradientSums::Kind::over) continue;
      take_sums();
      result.loss = loss_.item<double>();
      result.finite = finite_ = sum.kind == GradientSums::Kind::good;
      return result;
    }
  }

  /// step.commit(); also changes the module's buffers, unless a gradient was not finite.
  void commit(elastic::Step& step, const std::function<void()>& apply) {
    step.commit([&] {
      if (finite_) buffers_.apply();
      sums_.commit();
      apply();
    });
  }

  /// The units of the sums after the last committed step, as bytes. A checkpoint needs them:
  /// without them a job that goes on from it does not have the bits of one without a break. To be
  /// saved and loaded with the module: `save_async(group, writer, step, {module, optimizer,
  /// gradients})`.
  std::string state() const { return sums_.state(); }
  /// Restores a result of state(), before job.run(). Throws Error(mismatch) if it is one for
  /// another module.
  void restore(std::string_view state) { sums_.restore(state); }

 private:
  static std::vector<at::Tensor> trained(const ::torch::nn::Module& module) {
    std::vector<at::Tensor> result;
    for (const auto& [name, t] : detail::each_once(module.named_parameters())) {
      if (!t.requires_grad()) continue;
      if (t.scalar_type() != at::kFloat || !t.is_cpu()) {
        throw Error(ErrorKind::unsupported, {.operation = "ElasticGradients"},
                    "parameter " + name + " is not of f32 in host memory");
      }
      result.push_back(t);
    }
    return result;
  }

  // Parameters, buffers, then the loss.
  std::vector<std::size_t> sizes() {
    std::vector<std::size_t> result;
    for (const at::Tensor& p : parameters_) {
      result.push_back(static_cast<std::size_t>(p.numel()));
    }
    for (const at::Tensor& t : buffers_.changes()) {
      result.push_back(static_cast<std::size_t>(t.numel()));
    }
    result.push_back(1);
    return result;
  }

  static std::span<float> memory_of(const at::Tensor& t) {
    return {t.data_ptr<float>(), static_cast<std::size_t>(t.numel())};
  }

  // A tensor in the memory of the sums, which it keeps; undefined if there is none.
  static at::Tensor view_of(const std::shared_ptr<float>& memory, at::IntArrayRef sizes) {
    if (!memory) return {};
    return ::torch::from_blob(
        memory.get(), sizes, [memory](void*) {}, at::kFloat);
  }

  // Makes libtorch add up the gradients of the first shard in the memory in which ranks sum them.
  void prepare_gradients(bool first) {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      at::Tensor& gradient = parameters_[i].mutable_grad();
      gradient.reset();
      if (first) gradient = view_of(sums_.first(i), parameters_[i].sizes());
      if (gradient.defined()) gradient.zero_();
    }
  }

  // The sums stay there, too.
  void take_sums() {
    std::size_t tensor = 0;
    for (const at::Tensor& p : parameters_) {
      const auto sum = sums_.sum(tensor++);
      p.mutable_grad() = sum ? view_of(sum, p.sizes()) : at::zeros(p.sizes(), at::kFloat);
    }
    const auto copy = [&](const at::Tensor& t) {
      const auto sum = sums_.sum(tensor++);
      std::copy_n(sum.get(), t.numel(), t.data_ptr<float>());
    };
    for (const at::Tensor& t : buffers_.changes()) copy(t);
    copy(loss_);
  }

  // Whatever ends this, the module has its kept buffers.
  void compute_shards(elastic::Step& step, const Loss& loss) {
    struct Reset {
      detail::ShardBuffers& buffers;
      ~Reset() { buffers.reset(); }
    } const reset{buffers_};
    const auto all = static_cast<double>(computed(step).samples);
    bool first = true;
    const auto compute = [&](int shard, bool is_mine) {
      const auto samples = step.samples(batches_, shard);
      if (samples.empty()) return;
      detail::seed_generator(stream_seed(seed_, static_cast<std::uint64_t>(step.number()),
                                         static_cast<std::uint32_t>(shard),
                                         static_cast<std::uint32_t>(batches_.shards())));
      prepare_gradients(is_mine && std::exchange(first, false));
      const Taken taken = take_shard(loss(samples), static_cast<double>(samples.size()) / all);
      if (step.is_audited(shard)) step.audit(shard, sums_.hash(taken.views));
      if (is_mine) sums_.add(taken.views);
      if (is_mine && !sums_.is_finite()) {
        step.capture(shard, "the gradient is not finite", sums_.hash(taken.views));
      }
    };
    for (const int shard : step.shards(batches_)) compute(shard, true);
    for (const int shard : step.audits()) compute(shard, false);
  }

  struct Computed {
    std::int64_t samples = 0, shards = 0;
  };
  // The amount of work of all ranks. In a smaller last batch some shards may be empty.
  Computed computed(const elastic::Step& step) const {
    const std::int64_t all = batches_.batch_size(step.number());
    Computed result{all, std::min<std::int64_t>(batches_.shards(), all)};
    for (int shard = 0; shard < batches_.shards(); ++shard) {
      if (!step.skips(shard)) continue;
      const auto skipped = std::ssize(batches_.shard(step.number(), shard));
      result.samples -= skipped;
      result.shards -= skipped > 0 ? 1 : 0;
    }
    return result;
  }

  void require_all_shards(const elastic::Step& step, std::int64_t added) const {
    const std::int64_t expected = computed(step).shards;
    if (added == expected) return;
    throw Error(ErrorKind::mismatch, {.operation = "ElasticGradients"},
                std::to_string(added) + " shards of step " + std::to_string(step.number()) +
                    " were added up, not " + std::to_string(expected));
  }

  // Gradients, buffers and loss of a shard.
  struct Taken {
    std::vector<at::Tensor> held;  // What the views are of.
    std::vector<std::span<const float>> views;
  };
  Taken take_shard(const at::Tensor& loss, double weight) {
    if (loss.numel() != 1) {
      throw Error(ErrorKind::bad_argument, {.operation = "ElasticGradients"},
                  "the loss of a shard is not one number");
    }
    loss.backward(at::full_like(loss, weight));
    buffers_.take(weight);
    loss_.fill_(loss.item<double>() * weight);
    Taken taken;
    for (const at::Tensor& p : parameters_) {
      taken.held.push_back(p.grad().defined() ? p.grad().to_dense().contiguous() : at::Tensor());
      const at::Tensor& gradient = taken.held.back();
      taken.views.push_back(gradient.defined() ? memory_of(gradient) : std::span<float>());
    }
    for (const at::Tensor& t : buffers_.changes()) taken.views.push_back(memory_of(t));
    taken.views.push_back(memory_of(loss_));
    return taken;
  }

  const std::vector<at::Tensor> parameters_;
  detail::ShardBuffers buffers_;
  const at::Tensor loss_ = at::zeros({1}, at::kFloat);
  const GlobalBatches batches_;
  const std::uint64_t seed_;
  GradientSums sums_;
  std::optional<int> round_;  // The round for which sums_ has memory.
  bool finite_ = true;
};

}  // namespace ddprun::torch
