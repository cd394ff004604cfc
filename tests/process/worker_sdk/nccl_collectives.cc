// Every operation of the backend nccl once, against what the host expects: gpu/run.sh runs it on a
// GPU and on the fakes, under ddprun.
//   nccl_collectives
// Element k of rank r's input is r + 1 + k % 8, so that all sums are exact. An average is not: NCCL
// multiplies each rank's by 1 / n before it sums.

#include <cmath>
#include <cstdio>
#include <functional>
#include <stdexcept>
#include <vector>

#include "ddprun/ddprun.h"

namespace {

using ddprun::Buffer;
using ddprun::DataType;
using ddprun::ProcessGroup;
using ddprun::ReduceOp;

constexpr std::size_t kPart = 12'345;

float element(int rank, std::size_t k) {
  return static_cast<float>(rank + 1) + static_cast<float>(k % 8);
}

// An array in the GPU's memory.
class Array {
 public:
  Array(ProcessGroup& group, std::size_t count, const std::function<float(std::size_t)>& value)
      : group_(group), memory_(group.allocate(count * sizeof(float))), count_(count) {
    std::vector<float> values(count);
    for (std::size_t k = 0; k < count; ++k) values[k] = value(k);
    group.copy(memory_.get(), values.data(), count * sizeof(float));
  }
  Buffer buffer() const { return {memory_.get(), count_, DataType::f32}; }
  void expect(const char* operation, const std::function<float(std::size_t)>& wanted,
              float tolerance = 0) const {
    std::vector<float> values(count_);
    group_.copy(values.data(), memory_.get(), count_ * sizeof(float));
    for (std::size_t k = 0; k < count_; ++k) {
      if (std::abs(values[k] - wanted(k)) <= tolerance) continue;
      throw std::runtime_error(std::string(operation) + ": element " + std::to_string(k) + " is " +
                               std::to_string(values[k]) + ", not " + std::to_string(wanted(k)));
    }
  }

 private:
  ProcessGroup& group_;
  std::shared_ptr<void> memory_;
  std::size_t count_;
};

float untouched(std::size_t) { return -1; }

class Check {
 public:
  explicit Check(ProcessGroup& group)
      : group_(group),
        me_(group.rank()),
        size_(group.world_size()),
        all_(kPart * static_cast<std::size_t>(size_)) {}

  void run() {
    reductions();
    part_by_part();
    from_and_to_a_root();
    pairs();
    group_.barrier();
  }

 private:
  Array mine(std::size_t count = kPart) {
    return {group_, count, [this](std::size_t k) { return element(me_, k); }};
  }
  // The sum of the ranks' elements k.
  float sum(std::size_t k) const {
    float result = 0;
    for (int r = 0; r < size_; ++r) result += element(r, k);
    return result;
  }
  static int owner(std::size_t k) { return static_cast<int>(k / kPart); }

  void reductions() {
    Array summed = mine(), averaged = mine(), least = mine(), most = mine(),
          reduced(group_, kPart, untouched);
    group_.all_reduce(summed.buffer());
    summed.expect("all_reduce", [&](std::size_t k) { return sum(k); });
    group_.all_reduce(averaged.buffer(), ReduceOp::avg);
    averaged.expect(
        "all_reduce avg", [&](std::size_t k) { return sum(k) / static_cast<float>(size_); }, 1e-5F);
    group_.all_reduce(least.buffer(), ReduceOp::min);
    least.expect("all_reduce min", [&](std::size_t k) { return element(0, k); });
    group_.all_reduce(most.buffer(), ReduceOp::max);
    most.expect("all_reduce max", [&](std::size_t k) { return element(size_ - 1, k); });
    const int root = size_ - 1;
    group_.reduce(mine().buffer(), reduced.buffer(), root);
    reduced.expect("reduce", [&](std::size_t k) { return me_ == root ? sum(k) : -1; });
  }

  void part_by_part() {
    Array part(group_, kPart, untouched), gathered(group_, all_, untouched),
        changed(group_, all_, untouched);
    const Array input = mine(all_);
    const auto first = [&](int r) { return static_cast<std::size_t>(r) * kPart; };
    group_.reduce_scatter(input.buffer(), part.buffer());
    part.expect("reduce_scatter", [&](std::size_t k) { return sum(first(me_) + k); });
    group_.all_gather(mine().buffer(), gathered.buffer());
    gathered.expect("all_gather", [](std::size_t k) { return element(owner(k), k % kPart); });
    group_.all_to_all(input.buffer(), changed.buffer());
    const auto exchanged = [&](std::size_t k) { return element(owner(k), first(me_) + k % kPart); };
    changed.expect("all_to_all", exchanged);
    group_.all_to_all(input.buffer(), input.buffer());
    input.expect("all_to_all in place", exchanged);
  }

  void from_and_to_a_root() {
    const int root = size_ - 1;
    Array sent = mine(), gathered(group_, all_, untouched), part(group_, kPart, untouched);
    group_.broadcast(sent.buffer(), root);
    sent.expect("broadcast", [&](std::size_t k) { return element(root, k); });
    group_.gather(mine().buffer(), gathered.buffer(), root);
    gathered.expect("gather",
                    [&](std::size_t k) { return me_ == root ? element(owner(k), k % kPart) : -1; });
    group_.scatter(mine(all_).buffer(), part.buffer(), root);
    part.expect("scatter", [&](std::size_t k) {
      return element(root, static_cast<std::size_t>(me_) * kPart + k);
    });
  }

  // Each to the next, around.
  void pairs() {
    if (size_ == 1) return;
    Array got(group_, kPart, untouched);
    const Array input = mine();
    const int next = (me_ + 1) % size_, before = (me_ + size_ - 1) % size_;
    if (me_ == 0) group_.send(input.buffer(), next);
    group_.recv(got.buffer(), before);
    if (me_ != 0) group_.send(input.buffer(), next);
    got.expect("recv", [&](std::size_t k) { return element(before, k); });
  }

  ProcessGroup& group_;
  const int me_, size_;
  const std::size_t all_;
};

}  // namespace

int main() {
  try {
    auto group = ProcessGroup::init({.backend = "nccl"});
    Check(group).run();
    if (group.rank() == 0)
      std::printf("every operation is right on %d ranks\n", group.world_size());
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "nccl_collectives: %s\n", error.what());
    return 1;
  }
}
