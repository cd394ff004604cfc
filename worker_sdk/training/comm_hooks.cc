// The simple hooks of ddprun/comm_hook.h; PowerSGD is in power_sgd.cc.

#include <memory>
#include <utility>

#include "ddprun/comm_hook.h"
#include "worker_sdk/gpu/gpu_kernels.h"
#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/transport/reduce.h"

namespace ddprun {
namespace hooks {
namespace {

using worker_sdk::DeviceSide;
using worker_sdk::GroupInside;

using Next = std::function<std::optional<Work>(ProcessGroup&, GradientBucket&, int)>;

class Custom final : public CommHook {
 public:
  Custom(CommHookTraits traits, Next next) : CommHook(std::move(traits)), next_(std::move(next)) {}
  std::optional<Work> next(ProcessGroup& group, GradientBucket& bucket, int step) override {
    return next_(group, bucket, step);
  }

 private:
  const Next next_;
};

std::optional<Work> average(ProcessGroup& group, GradientBucket& bucket, int step) {
  if (step > 0) return {};
  return group.all_reduce_async(bucket.flat, ReduceOp::avg);
}

std::optional<Work> nothing(ProcessGroup&, GradientBucket&, int) { return {}; }

// On a GPU by kernels in the program's stream, followed by the all_reduce.
class Half final : public CommHook {
 public:
  Half(ProcessGroup& group, DataType type) : CommHook({.name = name_of(type)}), type_(type) {
    if (DeviceSide* device = GroupInside::device(group)) device->kernels();
  }

  std::optional<Work> next(ProcessGroup& group, GradientBucket& bucket, int step) override {
    const bool converts = size_of(bucket.flat.type) != size_of(type_);
    if (!converts) return average(group, bucket, step);
    if (step == 0) return send(group, bucket);
    take(group, bucket);
    return {};
  }

 private:
  Work send(ProcessGroup& group, GradientBucket& bucket) const {
    if (!bucket.state.has_value()) {
      bucket.state = group.allocate(bucket.flat.count * size_of(type_));
    }
    const Buffer narrow = narrow_of(bucket);
    if (DeviceSide* device = GroupInside::device(group)) {
      const float share = 1.0F / static_cast<float>(group.world_size());
      device->kernels().narrow(bucket.flat, narrow, share, in_stream(group));
      return group.all_reduce_async(narrow, ReduceOp::sum);
    }
    worker_sdk::convert(bucket.flat, narrow);
    return group.all_reduce_async(narrow, ReduceOp::avg);
  }

  void take(ProcessGroup& group, const GradientBucket& bucket) const {
    const Buffer narrow = narrow_of(bucket);
    DeviceSide* device = GroupInside::device(group);
    if (!device) return worker_sdk::convert(narrow, bucket.flat);
    device->kernels().widen(narrow, bucket.flat, in_stream(group));
    GroupInside::settle(group, traits().name + " of bucket " + std::to_string(bucket.index));
  }

  // The array that travels is the bucket's state.
  Buffer narrow_of(const GradientBucket& bucket) const {
    const auto& memory = std::any_cast<const std::shared_ptr<void>&>(bucket.state);
    return {memory.get(), bucket.flat.count, type_};
  }

  static Stream in_stream(const ProcessGroup& group) {
    return GroupInside::stream(group).value_or(nullptr);
  }

  const DataType type_;
};

CommHookFactory half(DataType type) {
  return [type](ProcessGroup& group) { return std::make_unique<Half>(group, type); };
}

}  // namespace

CommHookFactory all_reduce() { return custom({.name = "all_reduce"}, average); }
CommHookFactory noop() { return custom({.name = "noop"}, nothing); }
CommHookFactory fp16() { return half(DataType::f16); }
CommHookFactory bf16() { return half(DataType::bf16); }
CommHookFactory custom(CommHookTraits traits, Next next) {
  if (!next || traits.collectives < 1) {
    throw Error(ErrorKind::bad_argument, {.operation = "hooks::custom"},
                next ? "a hook of no collectives" : "the function is empty");
  }
  return [traits = std::move(traits), next = std::move(next)](ProcessGroup&) {
    return std::make_unique<Custom>(traits, next);
  };
}

}  // namespace hooks
}  // namespace ddprun
