#pragma once
// The worlds in which every collective is tried: each backend with several numbers of ranks, which
// are threads. For "cpu" the threads give themselves different hosts.

#include <cstring>
#include <mutex>

#include "tests/support/elements.h"
#include "tests/support/ranks.h"
#ifdef DDPRUN_FAKES  // A program of tests/gpu.cmake: the same tests on nccl alone.
#include "tests/support/fake_gpu.h"
#endif

namespace ddprun::test {

struct World {
  std::string backend;
  std::vector<std::string> hosts;  // By rank.

  int size() const { return static_cast<int>(hosts.size()); }
  std::string name() const {
    std::string text = backend + " on";
    for (const std::string& host : hosts) text += " " + host;
    return text;
  }
  Ranks ranks() const {
    Ranks result;
    result.world_size = size();
    result.backend = backend;
    result.hosts = hosts;
    return result;
  }
};

#ifdef DDPRUN_FAKES
inline const FakeGpu kFakeGpu;
constexpr const char* kAnyBackend = "nccl";

inline std::vector<World> worlds() { return {{"nccl", {"a"}}, {"nccl", {"a", "b", "a"}}}; }
#else
constexpr const char* kAnyBackend = "auto";

inline std::vector<World> worlds() {
  std::vector<World> result{{"self", {"a"}}};
  for (std::size_t n = 2; n <= 5; ++n) {
    result.push_back({"shm", std::vector<std::string>(n, "a")});
    result.push_back({"gloo", std::vector<std::string>(n, "a")});
  }
  result.push_back({"cpu", {"a", "a", "b"}});
  result.push_back({"cpu", {"a", "a", "b", "b"}});
  result.push_back({"cpu", {"b", "a", "c", "a", "c", "a"}});
  return result;
}
#endif

// Nothing, one, few, around the edges of the small path and of a chunk, several chunks and a rest.
constexpr std::size_t kCounts[] = {0, 1, 7, 1025, 8193, 70001};

inline Buffer view(DataType type, std::vector<std::byte>& bytes) {
  return {bytes.data(), bytes.size() / size_of(type), type};
}

// Collects what ranks find wrong: Catch2 knows no threads.
class FirstComplaint {
 public:
  void add(const std::string& text) {
    const std::lock_guard lock(mutex_);
    if (text_.empty()) text_ = text;
  }
  std::string text() const { return text_; }

 private:
  std::mutex mutex_;
  std::string text_;
};

// How far an element may be from the host's: averages of f16 and bf16 are rounded twice on cpu, and
// NCCL's are sums of products with 1 / n; all else is exact.
inline double tolerance_on(const std::string& backend, DataType type, ReduceOp op) {
  if (op != ReduceOp::avg || (backend != "cpu" && backend != "nccl")) return 0;
  if (is_half(type)) return type == DataType::f16 ? 0.005 : 0.05;
  if (backend == "cpu") return 0;
  return type == DataType::f32 ? 1e-5 : type == DataType::f64 ? 1e-14 : 0;
}

inline bool equal_on(const std::string& backend, DataType type, ReduceOp op,
                     const std::vector<std::byte>& got, const std::vector<std::byte>& want) {
  // Not ==, which goes byte by byte and is what these tests then do most of under ThreadSanitizer.
  if (got.size() != want.size()) return false;
  if (got.empty() || std::memcmp(got.data(), want.data(), got.size()) == 0) return true;
  const double tolerance = tolerance_on(backend, type, op);
  if (tolerance == 0) return false;
  for (std::size_t i = 0; i < want.size() / size_of(type); ++i) {
    if (std::abs(get(type, got, i) - get(type, want, i)) > tolerance) return false;
  }
  return true;
}

inline bool is_right(const ProcessGroup& group, DataType type, ReduceOp op,
                     const std::vector<std::byte>& got, std::size_t count) {
  return equal_on(group.backend(), type, op, got, expected(type, op, group.world_size(), count));
}

}  // namespace ddprun::test
