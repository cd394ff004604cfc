#pragma once
// A model of float arrays, and one backward pass over it, for tests of DistributedDataParallel.

#include <mutex>
#include <string>
#include <vector>

#include "ddprun/ddprun.h"

namespace ddprun::test {

struct Model {
  Model(const std::vector<std::int64_t>& sizes, float value) {
    for (const std::int64_t n : sizes) arrays.emplace_back(static_cast<std::size_t>(n), value);
  }
  std::vector<Parameter> parameters() {
    std::vector<Parameter> result;
    for (std::size_t i = 0; i < arrays.size(); ++i) {
      result.push_back({"layer" + std::to_string(i),
                        buffer(arrays[i].data(), arrays[i].size()),
                        {static_cast<std::int64_t>(arrays[i].size())}});
    }
    return result;
  }
  std::vector<std::vector<float>> arrays;
};

inline std::vector<float> read(const Buffer& b) {
  const auto* p = static_cast<const float*>(b.data);
  return {p, p + b.count};
}

inline void add(const Buffer& b, float value) {
  auto* p = static_cast<float*>(b.data);
  for (std::size_t i = 0; i < b.count; ++i) p[i] += value;
}

// A pass in which every gradient grows by `value`, last parameter first.
inline void pass(DistributedDataParallel& ddp, std::size_t parameters, float value) {
  ddp.begin_backward();
  for (std::size_t i = parameters; i-- > 0;) {
    add(ddp.gradient(i), value);
    ddp.mark_ready(i);
  }
  ddp.finish_backward();
}

// What went wrong in the ranks' threads, as Catch2 may not be used there.
class Complaints {
 public:
  void unless(bool ok, const std::string& text) {
    if (ok) return;
    const std::lock_guard lock(mutex_);
    text_ += text + "; ";
  }
  std::string text() const { return text_.empty() ? "none" : text_; }

 private:
  std::mutex mutex_;
  std::string text_;
};

}  // namespace ddprun::test
