// ddprun's own kernels against the host's loops, to the bit: their very source on the fakes, or
// with DDPRUN_TEST_GPU=1 what nvcc made of it on the GPU of this machine.

#include <bit>
#include <catch2/catch.hpp>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <random>

#include "ddprun/error.h"
#include "tests/support/card.h"
#include "tests/support/ranks.h"
#include "worker_sdk/gpu/gpu_kernels.h"
#include "worker_sdk/transport/reduce.h"

namespace ddprun::worker_sdk {
namespace {

using Catch::Matchers::Contains;
using test::Card;

// Numbers where rounding is delicate, then as many others as asked for.
template <class T>
std::vector<T> numbers(std::size_t count) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  std::vector<T> values{0,          T(-0.0F),    1,
                        -1,         65504,       65519,
                        65520,      -65520,      3e38F,
                        6e-8F,      -2.9e-8F,    3e-8F,
                        6.1e-5F,    1e-40F,      1.0009765F,
                        2049,       2051,        kInfinity,
                        -kInfinity, 1.00390625F, std::numeric_limits<float>::quiet_NaN()};
  std::mt19937 random(7);
  while (values.size() < count) values.push_back(T(std::bit_cast<float>(std::uint32_t(random()))));
  values.resize(count);
  return values;
}

template <class T>
constexpr DataType kType = sizeof(T) == 4 ? DataType::f32 : DataType::f64;

// A NaN stays one; which, is the processor's affair.
void unify_nans(std::vector<std::uint16_t>& values, DataType half) {
  const int infinity = half == DataType::f16 ? 0x7c00 : 0x7f80;
  for (std::uint16_t& value : values) {
    if ((value & 0x7fff) > infinity) value = 0x7fff;
  }
}

template <class T>
void unify_nans(std::vector<T>& values) {
  for (T& value : values) {
    if (std::isnan(value)) value = std::numeric_limits<T>::quiet_NaN();
  }
}

template <class T>
void compare_narrow(Card& card, DataType half, std::size_t count, float factor) {
  INFO(name_of(kType<T>) << " to " << name_of(half) << ", " << count << " times " << factor);
  std::vector<T> values = numbers<T>(count);
  const auto from = card.array(values);
  const auto to = card.array(std::vector<std::uint16_t>(count + 1, 0xabcd));
  card.kernels().narrow({from.get(), count, kType<T>}, {to.get(), count, half}, factor, nullptr);
  for (T& value : values) value = static_cast<T>(static_cast<float>(value) * factor);
  std::vector<std::uint16_t> expected(count + 1, 0xabcd);
  convert({values.data(), count, kType<T>}, {expected.data(), count, half});
  auto got = card.read<std::uint16_t>(to, count + 1);
  unify_nans(got, half);
  unify_nans(expected, half);
  CHECK(got == expected);
}

template <class T>
void compare_widen(Card& card, DataType half, std::size_t count) {
  INFO(name_of(half) << " to " << name_of(kType<T>) << ", " << count);
  std::vector<std::uint16_t> values(count);
  for (std::size_t i = 0; i < count; ++i) values[i] = static_cast<std::uint16_t>(i);
  const auto from = card.array(values);
  const auto to = card.array(std::vector<T>(count + 1, 42));
  card.kernels().widen({from.get(), count, half}, {to.get(), count, kType<T>}, nullptr);
  std::vector<T> expected(count + 1, 42);
  convert({values.data(), count, half}, {expected.data(), count, kType<T>});
  auto got = card.read<T>(to, count + 1);
  unify_nans(got);
  unify_nans(expected);
  CHECK(std::memcmp(got.data(), expected.data(), got.size() * sizeof(T)) == 0);
}

TEST_CASE("GPU kernels: halves are rounded as on the host, whatever the size", "[nccl]") {
  Card card;
  for (const DataType half : {DataType::f16, DataType::bf16}) {
    for (const std::size_t count : {0U, 1U, 3U, 4U, 21U, 70000U}) {
      compare_narrow<float>(card, half, count, 1);
      compare_narrow<double>(card, half, count, 1);
      compare_widen<float>(card, half, count);
      compare_widen<double>(card, half, count);
    }
    compare_narrow<float>(card, half, 3000001, 1.0F / 3);  // More than a thread's share.
    compare_narrow<double>(card, half, 1000, 1.0F / 3);
  }
}

std::string refusal() {
  try {
    const auto gpu = load_gpu_runtime();
    const GpuKernels kernels(gpu, 0);
    return "none";
  } catch (const Error& error) {
    return error.kind() == ErrorKind::unsupported ? error.what() : "another kind";
  }
}

TEST_CASE("GPU kernels: where there are none it is said why", "[nccl]") {
  {
    const test::FakeGpu gpu("", "kernels=none,driver=11040");
    CHECK_THAT(refusal(), Contains("the driver, for CUDA 11.4, does not take those of ") &&
                              Contains("no kernel image is available"));
  }
  const test::FakeGpu gpu;
  CHECK(refusal() == "none");
  const test::TemporaryDirectory directory;
  test::FakeGpu::set("DDPRUN_GPU_KERNELS", directory / "nothing");
  CHECK_THAT(refusal(), Contains("cannot read " + directory / "nothing"));
  std::ofstream(directory / "empty") << "";
  test::FakeGpu::set("DDPRUN_GPU_KERNELS", directory / "empty");
  CHECK_THAT(refusal(), Contains("does not take those of " + directory / "empty"));
  test::FakeGpu::set("DDPRUN_CUDA_LIB", directory / "nothing");
  CHECK_THAT(refusal(), Contains("DDPRUN_CUDA_LIB cannot be loaded"));
  test::FakeGpu::set("DDPRUN_CUDA_LIB", "libm.so.6");
  CHECK_THAT(refusal(), Contains("has no cu") && Contains("it is too old"));
}

TEST_CASE("GPU kernels: the library's own image is taken; without nvcc that is said", "[nccl]") {
  const test::FakeGpu gpu;
  ::unsetenv("DDPRUN_GPU_KERNELS");
  if (built_in_kernels().bytes.empty()) {
    CHECK_THAT(refusal(), Contains("was built without nvcc"));
  } else {
    CHECK(refusal() == "none");
  }
}

template <class T>
T read_at(std::string_view bytes, std::size_t at) {
  T value{};
  std::memcpy(&value, bytes.substr(at, sizeof(T)).data(), sizeof(T));
  return value;
}

// A fatbin is a header and one entry for each card, as cuobjdump lists them.
TEST_CASE("GPU kernels: the library carries code for sm_80 and sm_90, and PTX for later ones",
          "[nccl]") {
  const std::string_view image = built_in_kernels().bytes;
  if (image.empty()) return;  // No nvcc.
  std::string found;
  REQUIRE(read_at<std::uint32_t>(image, 0) == 0xba55ed50);
  for (std::size_t at = read_at<std::uint16_t>(image, 6); at + 64 <= image.size();) {
    found += (read_at<std::uint16_t>(image, at) == 1 ? "ptx " : "sm_") +
             std::to_string(read_at<std::uint32_t>(image, at + 28)) + "; ";
    at += read_at<std::uint32_t>(image, at + 4) + read_at<std::uint64_t>(image, at + 8);
  }
  CHECK(found == "sm_80; sm_90; ptx 90; ");
}

}  // namespace
}  // namespace ddprun::worker_sdk
