#include "ddprun/clip_grad_norm.h"

#include <cmath>
#include <string>

#include "worker_sdk/training/gradient_math.h"

namespace ddprun {
namespace {

[[noreturn]] void refuse_norm(const std::string& text) {
  throw Error(ErrorKind::bad_argument, {.operation = "clip_grad_norm"}, text);
}

void check(std::span<const Buffer> gradients, const ClipOptions& options) {
  if (!(options.norm_type > 0)) {
    refuse_norm("norm_type is " + std::to_string(options.norm_type) + "; it must be above 0");
  }
  for (const Buffer& g : gradients) {
    if (!is_floating(g.type)) {
      refuse_norm(std::string("a gradient of type ") + name_of(g.type) + " has no norm");
    }
    if (!g.data && g.count > 0) refuse_norm("the array of a gradient is null");
  }
}

// The sum of all |x| ^ norm_type; their maximum for infinity.
double total(std::span<const Buffer> gradients, double norm_type) {
  double result = 0;
  for (const Buffer& g : gradients) {
    const double part = worker_sdk::sum_of_powers(g, norm_type);
    if (!std::isinf(norm_type)) {
      result += part;
    } else if (!(part <= result) && !std::isnan(result)) {
      result = part;
    }
  }
  return result;
}

double clip(std::span<const Buffer> gradients, double total, double max_norm,
            const ClipOptions& options) {
  const double norm = std::isinf(options.norm_type) || options.norm_type == 1 ? total
                      : options.norm_type == 2                                ? std::sqrt(total)
                                               : std::pow(total, 1 / options.norm_type);
  if (options.error_if_nonfinite && !std::isfinite(norm)) {
    refuse_norm("the norm of the gradients is " + std::to_string(norm) +
                "; clear error_if_nonfinite to scale by it anyway");
  }
  const double factor = max_norm / (norm + 1e-6);
  if (factor >= 1) return norm;  // False for a NaN.
  for (const Buffer& g : gradients) worker_sdk::multiply(g, factor);
  return norm;
}

}  // namespace

double clip_grad_norm(std::span<const Buffer> gradients, double max_norm,
                      const ClipOptions& options) {
  check(gradients, options);
  return clip(gradients, total(gradients, options.norm_type), max_norm, options);
}

double clip_grad_norm(ProcessGroup& group, std::span<const Buffer> part, double max_norm,
                      const ClipOptions& options) {
  check(part, options);
  double all = total(part, options.norm_type);
  group.all_reduce(buffer(&all, 1), std::isinf(options.norm_type) ? ReduceOp::max : ReduceOp::sum,
                   {.on_host = true});
  return clip(part, all, max_norm, options);
}

}  // namespace ddprun
