// hooks::power_sgd(). Step 0 averages p of every compressed matrix, together with all that is not
// compressed; step 1 averages q. Factors are the state of their bucket. Buckets of half types are
// averaged in full. What is computed in between is in power_sgd_host.cc and power_sgd_device.cc.

#include <algorithm>
#include <any>
#include <memory>
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

std::string name_of(const PowerSgdOptions& options) {
  return "power_sgd rank " + std::to_string(options.rank) + " from step " +
         std::to_string(options.start_step) + " rate " +
         std::to_string(options.min_compression_rate) +
         (options.use_error_feedback ? " feedback" : "") + (options.warm_start ? " warm" : "") +
         " epsilon " + std::to_string(options.orthogonalization_epsilon) + " seed " +
         std::to_string(options.seed);
}

class PowerSgd final : public CommHook {
 public:
  PowerSgd(ProcessGroup& group, const PowerSgdOptions& options)
      : CommHook({.name = name_of(options), .collectives = 2}),
        options_(options),
        steps_(worker_sdk::GroupInside::device(group)
                   ? worker_sdk::power_sgd_on_device(group, options)
                   : worker_sdk::power_sgd_on_host(options)) {}

  std::optional<Work> next(ProcessGroup& group, GradientBucket& bucket, int step) override {
    if (step == 0 && bucket.index == 0) passes_ += 1;
    if (!compresses(bucket)) {
      if (step > 0) return {};
      return group.all_reduce_async(bucket.flat, ReduceOp::avg);
    }
    if (!bucket.state.has_value()) bucket.state = plan(group, bucket);
    auto& f = std::any_cast<PowerSgdFactors&>(bucket.state);
    if (step == 0) {
      const auto stream = static_cast<std::uint64_t>(passes_) << 20 ^ bucket.index;
      steps_->send_p(f, options_.seed ^ stream);
      return group.all_reduce_async({f.sent.get(), f.sent_count, f.type}, ReduceOp::avg);
    }
    if (step == 1) {
      steps_->send_q(f);
      if (f.q_count > 0) {
        return group.all_reduce_async({f.q.get(), f.q_count, f.type}, ReduceOp::avg);
      }
    }
    steps_->take(f);
    f.warm = options_.warm_start;
    return {};
  }

 private:
  bool compresses(const GradientBucket& bucket) const {
    return is_of(bucket.flat.type, TypeClass::floating) && passes_ > options_.start_step;
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
  const std::unique_ptr<worker_sdk::PowerSgdSteps> steps_;
  int passes_ = 0;  // Counts from 1, as PyTorch's iterations from 0.
};

}  // namespace

CommHookFactory power_sgd(const PowerSgdOptions& options) {
  if (options.rank < 1 || options.start_step < 0) {
    throw Error(ErrorKind::bad_argument, {.operation = "hooks::power_sgd"},
                "rank must be at least 1, and start_step not negative");
  }
  return [options](ProcessGroup& group) { return std::make_unique<PowerSgd>(group, options); };
}

}  // namespace ddprun::hooks
