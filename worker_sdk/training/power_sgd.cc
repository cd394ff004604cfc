// hooks::power_sgd(). Phase 1 averages p of every compressed matrix, together with all that is not
// compressed; phase 2 averages q. Buckets of half types are averaged in full. What is computed in
// between is in power_sgd_host.cc and power_sgd_device.cc.

#include <algorithm>
#include <map>
#include <utility>

#include "ddprun/comm_hook.h"
#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/training/power_sgd_steps.h"

namespace ddprun::hooks {
namespace {

using worker_sdk::LowRankShape;
using worker_sdk::PowerSgdFactors;

LowRankShape shape_of(const GradientBucket::Piece& piece, int rank) {
  const std::size_t rows = piece.shape.empty() ? 1 : static_cast<std::size_t>(piece.shape[0]);
  const std::size_t columns = rows == 0 ? 0 : piece.gradient.count / rows;
  return {rows, columns, std::min({rows, columns, static_cast<std::size_t>(rank)})};
}

class PowerSgd final : public CommHook {
 public:
  explicit PowerSgd(const PowerSgdOptions& options) : options_(options) {}

  std::string name() const override {
    return "power_sgd rank " + std::to_string(options_.rank) + " from step " +
           std::to_string(options_.start_step) + " rate " +
           std::to_string(options_.min_compression_rate) +
           (options_.use_error_feedback ? " feedback" : "") + (options_.warm_start ? " warm" : "") +
           " epsilon " + std::to_string(options_.orthogonalization_epsilon) + " seed " +
           std::to_string(options_.seed);
  }
  int phases() const override { return 2; }
  void forget() override { factors_.clear(); }

  void prepare(ProcessGroup& group) override {
    factors_.clear();
    steps_ = worker_sdk::GroupInside::device(group)
                 ? worker_sdk::power_sgd_on_device(group, options_)
                 : worker_sdk::power_sgd_on_host(options_);
  }

  std::optional<Work> start(ProcessGroup& group, const GradientBucket& bucket) override {
    if (bucket.index == 0) step_ += 1;
    if (!compresses(bucket)) return group.all_reduce_async(bucket.flat, ReduceOp::avg);
    auto [it, is_new] = factors_.try_emplace(bucket.index);
    PowerSgdFactors& f = it->second;
    if (is_new) f = plan(group, bucket);
    const auto stream = static_cast<std::uint64_t>(step_) << 20 ^ bucket.index;
    steps_->send_p(f, options_.seed ^ stream);
    return group.all_reduce_async({f.sent.get(), f.sent_count, f.type}, ReduceOp::avg);
  }

  std::optional<Work> proceed(ProcessGroup& group, const GradientBucket& bucket, int) override {
    if (!compresses(bucket)) return {};
    PowerSgdFactors& f = factors_.at(bucket.index);
    steps_->send_q(f);
    if (f.q_count == 0) return {};
    return group.all_reduce_async({f.q.get(), f.q_count, f.type}, ReduceOp::avg);
  }

  void end(ProcessGroup&, const GradientBucket& bucket) override {
    if (!compresses(bucket)) return;
    PowerSgdFactors& f = factors_.at(bucket.index);
    steps_->take(f);
    f.warm = options_.warm_start;
  }

 private:
  bool compresses(const GradientBucket& bucket) const {
    const bool wide = bucket.flat.type == DataType::f32 || bucket.flat.type == DataType::f64;
    return wide && step_ > options_.start_step;
  }

  PowerSgdFactors plan(ProcessGroup& group, const GradientBucket& bucket) {
    PowerSgdFactors f{.type = bucket.flat.type};
    for (const auto& piece : bucket.pieces) {
      const LowRankShape shape = shape_of(piece, options_.rank);
      if (!worker_sdk::worth_compressing(shape, options_.min_compression_rate)) {
        f.plain.push_back(piece.gradient);
        continue;
      }
      f.matrices.push_back({piece.gradient, shape, f.p_count, f.q_count, f.error_count});
      f.p_count += shape.rows * shape.rank;
      f.q_count += shape.columns * shape.rank;
      f.error_count += piece.gradient.count;
    }
    if (bucket.tail.count > 0) f.plain.push_back(bucket.tail);
    f.sent_count = f.p_count;
    for (const Buffer& b : f.plain) f.sent_count += b.count;
    f.sent = group.allocate(f.sent_count * size_of(f.type));
    f.q = group.allocate(f.q_count * size_of(f.type));
    steps_->plan(f);
    return f;
  }

  const PowerSgdOptions options_;
  std::unique_ptr<worker_sdk::PowerSgdSteps> steps_;
  std::map<std::size_t, PowerSgdFactors> factors_;  // By bucket.
  int step_ = 0;  // Counts from 1, as PyTorch's iterations from 0.
};

}  // namespace

std::shared_ptr<CommHook> power_sgd(const PowerSgdOptions& options) {
  if (options.rank < 1 || options.start_step < 0) {
    throw Error(ErrorKind::bad_argument, {.operation = "hooks::power_sgd"},
                "rank must be at least 1, and start_step not negative");
  }
  return std::make_shared<PowerSgd>(options);
}

}  // namespace ddprun::hooks
