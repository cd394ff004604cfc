// DistributedDataParallel on the backend nccl against a computation on the host: gpu/run.sh runs it
// on a GPU, system/nccl_test.py on the fakes, both under ddprun. nccl_gradients [STEPS] Every rank
// knows every rank's gradients, from a seed, so each can compute the average by itself. Also
// required: that all ranks have the same bits. In a stream, with each comm hook, and as a CUDA
// graph, which the fakes' CUDA lacks.

#include <dlfcn.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <vector>

#include "ddprun/ddprun.h"
#include "common/checksum.h"
#include "worker_sdk/gpu/gpu_runtime.h"

namespace {

using ddprun::ProcessGroup;
namespace worker_sdk = ddprun::worker_sdk;

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

// Of matrices where possible, which PowerSGD compresses.
std::vector<std::int64_t> shape_of(std::size_t size) {
  const auto n = static_cast<std::int64_t>(size);
  if (n % 250 == 0) return {250, n / 250};
  return {n};
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
                          shape_of(kSizes[p])});
  }
  return parameters;
}

std::vector<float> read(ProcessGroup& group, const ddprun::Buffer& b) {
  std::vector<float> result(b.count);
  group.copy(result.data(), b.data, b.bytes());
  return result;
}

void require_equal_on_all(ProcessGroup& group, const std::vector<float>& values, const char* what) {
  std::uint64_t sum = ddprun::checksum(values.data(), values.size() * sizeof(float));
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

// Of one step's gradients, which all ranks must have alike.
double compare(ProcessGroup& group, ddprun::DistributedDataParallel& ddp, int step) {
  double worst = 0;
  for (std::size_t p = 0; p < kSizes.size(); ++p) {
    const auto got = read(group, ddp.gradient(p));
    require_equal_on_all(group, got, "gradients");
    worst = std::max(worst, largest_error(got, average_of(group.world_size(), step, p)));
  }
  return worst;
}

double run(ProcessGroup& group, int steps, ddprun::CommHookFactory hook = nullptr) {
  std::vector<std::shared_ptr<void>> memory;
  const auto parameters = make_parameters(group, memory);
  ddprun::DdpOptions options{.first_bucket_bytes = 1 << 16, .bucket_bytes = 1 << 20};
  options.hook = std::move(hook);
  ddprun::DistributedDataParallel ddp(group, parameters, options);
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
    worst = std::max(worst, compare(group, ddp, step));
  }
  return worst;
}

// What of CUDA's graphs a program needs.
struct Graphs {
  explicit Graphs(const worker_sdk::GpuRuntime& gpu) {
    void* library = ::dlopen(gpu.cuda_path.c_str(), RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) return;
    const auto find = [&](auto& function, const char* name) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, name));
    };
    find(begin, "cudaStreamBeginCapture");
    find(end, "cudaStreamEndCapture");
    find(instantiate, "cudaGraphInstantiate");
    find(launch, "cudaGraphLaunch");
    find(destroy_instance, "cudaGraphExecDestroy");
    find(destroy, "cudaGraphDestroy");
  }
  int (*begin)(worker_sdk::CudaStream, int mode) = nullptr;
  int (*end)(worker_sdk::CudaStream, void** graph) = nullptr;
  int (*instantiate)(void** instance, void* graph, unsigned long long flags) = nullptr;
  int (*launch)(void* instance, worker_sdk::CudaStream) = nullptr;
  int (*destroy_instance)(void* instance) = nullptr;
  int (*destroy)(void* graph) = nullptr;
};

void require(int status, const char* what) {
  if (status != 0) throw std::runtime_error(what + (" failed: " + std::to_string(status)));
}

// A pass that is captured once and launched for each step. The gradients are written by copies
// within the GPU's memory, from arrays that are filled between the launches.
double run_graph(ProcessGroup& group, const worker_sdk::GpuRuntime& gpu, const Graphs& graphs,
                 worker_sdk::CudaStream stream, int steps) {
  std::vector<std::shared_ptr<void>> memory;
  ddprun::DistributedDataParallel ddp(group, make_parameters(group, memory),
                                      {.first_bucket_bytes = 1 << 16, .bucket_bytes = 1 << 20});
  const auto fill = [&](int step) {
    for (std::size_t p = 0; p < kSizes.size(); ++p) {
      const auto mine = gradient_of(group.rank(), step, p);
      group.copy(memory[p].get(), mine.data(), mine.size() * sizeof(float));
    }
  };
  const auto pass = [&] {
    ddp.begin_backward();
    for (std::size_t p = kSizes.size(); p-- > 0;) {
      const auto& to = ddp.gradient(p);
      require(gpu.cuda.memcpy(to.data, memory[p].get(), to.bytes(), worker_sdk::kCudaMemcpyDefault,
                              stream),
              "a copy");
      ddp.mark_ready(p);
    }
    ddp.finish_backward();
  };
  double worst = 0;
  for (int step = 0; step < 2; ++step) {
    fill(step);
    pass();
    worst = std::max(worst, compare(group, ddp, step));
  }
  constexpr int kThreadLocal = 1;  // cudaStreamCaptureModeThreadLocal
  void *graph = nullptr, *instance = nullptr;
  require(graphs.begin(stream, kThreadLocal), "cudaStreamBeginCapture");
  pass();
  require(graphs.end(stream, &graph), "cudaStreamEndCapture");
  require(graphs.instantiate(&instance, graph, 0), "cudaGraphInstantiate");
  for (int step = 2; step < 2 + steps; ++step) {
    fill(step);
    require(graphs.launch(instance, stream), "cudaGraphLaunch");
    worst = std::max(worst, compare(group, ddp, step));
  }
  group.barrier();
  graphs.destroy_instance(instance);
  graphs.destroy(graph);
  return worst;
}

void report(ProcessGroup& group, const char* how, double worst, double tolerance) {
  std::printf("rank %d, %s: gradients equal on %d ranks, within %.1e of the host's\n", group.rank(),
              how, group.world_size(), worst);
  if (!(worst <= tolerance)) throw std::runtime_error("that is too far");
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
    const int steps = argc > 1 ? std::atoi(argv[1]) : 5;
    report(group, "the host waits", run(group, steps), kTolerance);
    group.use_stream(stream);
    report(group, "in a stream", run(group, steps), kTolerance);
    // A half's rounding of numbers below 1, once at each rank and once of their sum.
    report(group, "fp16", run(group, steps, ddprun::hooks::fp16()), 2e-3);
    report(group, "bf16", run(group, steps, ddprun::hooks::bf16()), 1.6e-2);
    // How well PowerSGD approximates is gpu_kernels_test's business.
    report(group, "PowerSGD", run(group, steps, ddprun::hooks::power_sgd({.start_step = 1})), 10);
    if (const Graphs graphs(*gpu); graphs.begin == nullptr) {
      std::printf("rank %d: no CUDA graphs here\n", group.rank());
    } else {
      report(group, "a graph", run_graph(group, *gpu, graphs, stream, steps), kTolerance);
    }
    group.use_stream(std::nullopt);
    gpu->cuda.stream_destroy(stream);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "nccl_gradients: %s\n", error.what());
    return 1;
  }
}
