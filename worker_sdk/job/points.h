#pragma once
// Where a test may stop or end a worker: at points that the job passes. Nothing in a program sets
// this.

#include <atomic>
#include <string_view>

namespace ddprun::elastic {

using PointHook = void (*)(std::string_view point);
inline std::atomic<PointHook> on_point{nullptr};

inline void pass(std::string_view point) {
  if (const PointHook hook = on_point.load(std::memory_order_relaxed)) hook(point);
}

}  // namespace ddprun::elastic
