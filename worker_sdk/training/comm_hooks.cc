// The simple hooks of ddprun/comm_hook.h; PowerSGD is in power_sgd.cc.

#include <map>
#include <utility>

#include "ddprun/comm_hook.h"
#include "worker_sdk/gpu/gpu_kernels.h"
#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/transport/convert.h"

namespace ddprun {

std::optional<Work> CommHook::proceed(ProcessGroup&, const GradientBucket&, int) { return {}; }
void CommHook::end(ProcessGroup&, const GradientBucket&) {}
void CommHook::prepare(ProcessGroup&) {}

namespace hooks {
namespace {

using worker_sdk::DeviceSide;
using worker_sdk::GroupInside;

class AllReduce final : public CommHook {
 public:
  std::string name() const override { return "all_reduce"; }
  std::optional<Work> start(ProcessGroup& group, const GradientBucket& bucket) override {
    return group.all_reduce_async(bucket.flat, ReduceOp::avg);
  }
};

class Noop final : public CommHook {
 public:
  std::string name() const override { return "noop"; }
  std::optional<Work> start(ProcessGroup&, const GradientBucket&) override { return {}; }
};

// On a GPU by kernels in the program's stream, in which the all_reduce follows them.
class Half final : public CommHook {
 public:
  explicit Half(DataType type) : type_(type) {}
  std::string name() const override { return name_of(type_); }
  void forget() override { scratch_.clear(); }

  void prepare(ProcessGroup& group) override {
    if (DeviceSide* device = GroupInside::device(group)) device->kernels();
  }

  std::optional<Work> start(ProcessGroup& group, const GradientBucket& bucket) override {
    if (size_of(bucket.flat.type) == size_of(type_)) {
      return group.all_reduce_async(bucket.flat, ReduceOp::avg);
    }
    auto& memory = scratch_[bucket.index];
    if (!memory) memory = group.allocate(bucket.flat.count * size_of(type_));
    const Buffer narrow{memory.get(), bucket.flat.count, type_};
    if (DeviceSide* device = GroupInside::device(group)) {
      const float share = 1.0F / static_cast<float>(group.world_size());
      device->kernels().narrow(bucket.flat, narrow, share, in_stream(group));
      return group.all_reduce_async(narrow, ReduceOp::sum);
    }
    worker_sdk::convert(bucket.flat, narrow);
    return group.all_reduce_async(narrow, ReduceOp::avg);
  }

  void end(ProcessGroup& group, const GradientBucket& bucket) override {
    const auto memory = scratch_.find(bucket.index);
    if (memory == scratch_.end()) return;
    const Buffer narrow{memory->second.get(), bucket.flat.count, type_};
    DeviceSide* device = GroupInside::device(group);
    if (!device) return worker_sdk::convert(narrow, bucket.flat);
    device->kernels().widen(narrow, bucket.flat, in_stream(group));
    GroupInside::settle(group, name() + " of bucket " + std::to_string(bucket.index));
  }

 private:
  static Stream in_stream(const ProcessGroup& group) {
    return GroupInside::stream(group).value_or(nullptr);
  }

  const DataType type_;
  std::map<std::size_t, std::shared_ptr<void>> scratch_;  // By bucket.
};

class Custom final : public CommHook {
 public:
  using Start = std::function<std::optional<Work>(ProcessGroup&, const GradientBucket&)>;
  using End = std::function<void(ProcessGroup&, const GradientBucket&)>;
  Custom(std::string name, Start start, End end)
      : name_(std::move(name)), start_(std::move(start)), end_(std::move(end)) {}
  std::string name() const override { return name_; }
  std::optional<Work> start(ProcessGroup& group, const GradientBucket& bucket) override {
    return start_(group, bucket);
  }
  void end(ProcessGroup& group, const GradientBucket& bucket) override {
    if (end_) end_(group, bucket);
  }

 private:
  const std::string name_;
  const Start start_;
  const End end_;
};

}  // namespace

std::shared_ptr<CommHook> all_reduce() { return std::make_shared<AllReduce>(); }
std::shared_ptr<CommHook> noop() { return std::make_shared<Noop>(); }
std::shared_ptr<CommHook> fp16() { return std::make_shared<Half>(DataType::f16); }
std::shared_ptr<CommHook> bf16() { return std::make_shared<Half>(DataType::bf16); }
std::shared_ptr<CommHook> custom(
    std::string name,
    std::function<std::optional<Work>(ProcessGroup&, const GradientBucket&)> start,
    std::function<void(ProcessGroup&, const GradientBucket&)> end) {
  if (!start) {
    throw Error(ErrorKind::bad_argument, {.operation = "hooks::custom"}, "start is empty");
  }
  return std::make_shared<Custom>(std::move(name), std::move(start), std::move(end));
}

}  // namespace hooks
}  // namespace ddprun
