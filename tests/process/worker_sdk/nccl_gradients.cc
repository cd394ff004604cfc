// DistributedDataParallel on the backend nccl against a computation on the host: gpu/run.sh runs it
// on a GPU, system/nccl_test.py on the fakes, both under ddprun.
//   nccl_gradients [STEPS]
// Every rank knows every rank's gradients, from a seed, so each can tell the average by itself.
// Also required: that all ranks have the same bits.

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <vector>

#include "ddprun/ddprun.h"
#include "worker_sdk/base/checksum.h"
#include "worker_sdk/gpu/gpu_runtime.h"

namespace {

using ddprun::ProcessGroup;

const std::vector<std::size_t> kSizes{3, 100'000, 7, 400'000, 1, 65'537};

std::vector<float> gradient_of(int rank, int step, std::size_t parameter) {
  std::mt19937 random(static_cast<std::uint32_t>(rank * 1'000 + step * 10) +
                      static_cast<std::uint32_t>(parameter));
  std::uniform_real_distribution<float> numbers(-1, 1);
  std::vector<float> result(kSizes[parameter]);
  for (float& x : result) x = numbers(random);
  return result;
}

std::vector<double> average_of(int ranks, int step, std::size_t parameter) {
  std::vector<double> sum(kSizes[parameter]);
  for (int r = 0; r < ranks; ++r) {
    const auto part = gradient_of(r, step, parameter);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  }
  for (double& x : sum) x /= ranks;
  return sum;
}

// The values: a GPU's memory, filled from the host.
std::vector<ddprun::Parameter> make_parameters(ProcessGroup& group,
                                               std::vector<std::shared_ptr<void>>& memory) {
  std::vector<ddprun::Parameter> parameters;
  for (std::size_t p = 0; p < kSizes.size(); ++p) {
    memory.push_back(group.allocate(kSizes[p] * sizeof(float)));
    const std::vector<float> mine(kSizes[p], static_cast<float>(group.rank() + 1));
    group.copy(memory.back().get(), mine.data(), mine.size() * sizeof(float));
    parameters.push_back({"p" + std::to_string(p),
                          {memory.back().get(), kSizes[p], ddprun::DataType::f32},
                          {static_cast<std::int64_t>(kSizes[p])}});
  }
  return parameters;
}

std::vector<float> read(ProcessGroup& group, const ddprun::Buffer& b) {
  std::vector<float> result(b.count);
  group.copy(result.data(), b.data, b.bytes());
  return result;
}

void require_equal_on_all(ProcessGroup& group, const std::vector<float>& values, const char* what) {
  std::uint64_t sum = ddprun::worker_sdk::checksum(values.data(), values.size() * sizeof(float));
  for (const std::string& other :
       ddprun::all_gather_bytes(group, {reinterpret_cast<const char*>(&sum), sizeof sum})) {
    if (other != std::string_view(reinterpret_cast<const char*>(&sum), sizeof sum)) {
      throw std::runtime_error(std::string(what) + " differ among ranks");
    }
  }
}

double largest_error(const std::vector<float>& got, const std::vector<double>& wanted) {
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    // Written so that a NaN is no small error.
    const double error = std::abs(static_cast<double>(got[i]) - wanted[i]);
    if (!(error <= worst)) worst = error;
  }
  return worst;
}

double run(ProcessGroup& group, int steps) {
  std::vector<std::shared_ptr<void>> memory;
  const auto parameters = make_parameters(group, memory);
  ddprun::DistributedDataParallel ddp(group, parameters,
                                      {.first_bucket_bytes = 1 << 16, .bucket_bytes = 1 << 20});
  for (const auto& p : parameters) {
    const auto value = read(group, p.value);
    if (value.back() != 1) throw std::runtime_error("the values are not those of rank 0");
  }
  double worst = 0;
  for (int step = 0; step < steps; ++step) {
    ddp.begin_backward();
    for (std::size_t p = kSizes.size(); p-- > 0;) {
      const auto mine = gradient_of(group.rank(), step, p);
      group.copy(ddp.gradient(p).data, mine.data(), ddp.gradient(p).bytes());
      ddp.mark_ready(p);
    }
    ddp.finish_backward();
    for (std::size_t p = 0; p < kSizes.size(); ++p) {
      const auto got = read(group, ddp.gradient(p));
      require_equal_on_all(group, got, "gradients");
      worst = std::max(worst, largest_error(got, average_of(group.world_size(), step, p)));
    }
  }
  return worst;
}

}  // namespace

int main(int argc, char** argv) {
  constexpr double kTolerance = 1e-6;  // Of averages of a few numbers below 1, in f32.
  try {
    auto group = ProcessGroup::init({.backend = "nccl"});
    const auto gpu = ddprun::worker_sdk::load_gpu_runtime();
    ddprun::worker_sdk::CudaStream stream = nullptr;
    gpu->cuda.set_device(group.device());
    gpu->cuda.stream_create(&stream, ddprun::worker_sdk::kCudaStreamNonBlocking, 0);
    if (group.rank() == 0) std::printf("%s\n", gpu->describe().c_str());
    for (const bool own_stream : {false, true}) {
      if (own_stream) group.use_stream(stream);
      const double worst = run(group, argc > 1 ? std::atoi(argv[1]) : 5);
      std::printf("rank %d, %s: gradients equal on %d ranks, within %.1e of the host's\n",
                  group.rank(), own_stream ? "in a stream" : "the host waits", group.world_size(),
                  worst);
      if (!(worst <= kTolerance)) throw std::runtime_error("that is too far");
    }
    group.use_stream(std::nullopt);
    gpu->cuda.stream_destroy(stream);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "nccl_gradients: %s\n", error.what());
    return 1;
  }
}
