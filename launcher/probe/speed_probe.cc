// How fast this node computes and copies, and which bits come out. The best of many short pieces is
// what the hardware can; other load shows in the others.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <vector>

#include "launcher/doctor/fact_names.h"
#include "launcher/probe/hash.h"
#include "launcher/probe/probe.h"

namespace ddprun::doctor {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kChunks = 60;
constexpr int kRounds = 100'000;  // Of a chunk: about a millisecond.
constexpr int kCopies = 24;
constexpr std::size_t kCopyBytes = 8u << 20;  // More than caches hold.
constexpr std::size_t kInputs = 50'000;

double milliseconds_since(std::chrono::steady_clock::time_point began) {
  return std::chrono::duration<double, std::milli>(Clock::now() - began).count();
}

// A chain of dependent operations: no compiler takes it apart, and only the clock makes it faster.
double chunk(double start) {
  double x = start;
  for (int i = 0; i < kRounds; ++i) x = x * 0.999999 + std::sqrt(x + 1.0) * 1e-6;
  return x;
}

double fastest_chunk_ms() {
  double best = 1e9, x = 1;
  for (int i = 0; i < kChunks; ++i) {
    const auto began = Clock::now();
    x = chunk(x);
    best = std::min(best, milliseconds_since(began));
  }
  return x > 0 ? best : 1e9;
}

double fastest_copy_gb_s() {
  const std::vector<char> from(kCopyBytes, 'f');
  std::vector<char> to(kCopyBytes, 't');
  double best = 0;
  for (int i = 0; i < kCopies; ++i) {
    const auto began = Clock::now();
    std::memcpy(to.data(), from.data(), kCopyBytes);
    const volatile char last = to[kCopyBytes - 1];
    (void)last;
    best = std::max(best, static_cast<double>(kCopyBytes) / milliseconds_since(began) / 1e6);
  }
  return best;
}

// What training computes with: exponentials, roots, sums of single precision. The mathematical
// library picks its code by processor, and rounds as that does.
std::string bits() {
  std::vector<float> results;
  std::uint64_t state = 88172645463325252;
  float sum = 0;
  for (std::size_t i = 0; i < kInputs; ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const float x = static_cast<float>(state >> 40) * 0x1p-20f - 8.0f;
    const double y = static_cast<double>(state >> 11) * 0x1p-50;
    sum += std::exp(-x * x) + std::tanh(x);
    results.push_back(sum + std::sin(x) + std::log1p(std::abs(x)));
    results.push_back(static_cast<float>(std::exp(-y) * std::sin(y) + std::pow(y + 0.5, 1.7)));
    const double wide =
        std::exp(-y) + std::sin(y * 3) + std::log(y + 0.25) + std::pow(y + 0.5, 1.7);
    std::uint64_t word;
    std::memcpy(&word, &wide, sizeof word);
    results.push_back(static_cast<float>(word & 0xFFFF));
  }
  return hash_text({reinterpret_cast<const char*>(results.data()), results.size() * sizeof(float)});
}

}  // namespace

void probe_speed(const ProbeRequest&, Facts& facts) {
  facts.set(fact::kBits, bits());
  facts.set(fact::kChunkMs, fastest_chunk_ms());
  facts.set(fact::kMemoryGbS, fastest_copy_gb_s());
}

}  // namespace ddprun::doctor
