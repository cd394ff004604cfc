// Is the sync timer right on a GPU? The question of sync_truth.cc, of the backend nccl.
//
//   ddprun --nproc-per-node 2 bench_gpu_sync_truth [rounds] [MiB of gradients] [ms of a layer]
//
// Each round runs a step with synchronisation and one without (no_sync), in turn. The backward pass
// of a layer is copies inside the GPU's memory, as many as were measured to take that long. The
// truth is what synchronisation makes the step longer: the median of the rounds' own differences.
// Beside it stands `exposed` as the timer reports it, by events, eight steps later.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

#include "ddprun/ddprun.h"
#include "worker_sdk/gpu/gpu_runtime.h"
#include "worker_sdk/timer/device_phases.h"

namespace {

using namespace ddprun::worker_sdk;
using ddprun::ProcessGroup;

constexpr std::size_t kParameters = 8;
constexpr std::size_t kScratch = std::size_t{64} << 20;  // More than a cache, and than a launch.

double ms_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// A stream, and work of known length for it.
class Gpu {
 public:
  explicit Gpu(ProcessGroup& group) : scratch_(group.allocate(2 * kScratch)) {
    gpu_->cuda.set_device(group.device());
    const int status = gpu_->cuda.stream_create(&stream_, kCudaStreamNonBlocking, 0) +
                       gpu_->cuda.event_create(&event_, kCudaEventDisableTiming);
    if (status != 0) throw std::runtime_error("there is no stream to be had");
  }
  ~Gpu() {
    gpu_->cuda.event_destroy(event_);
    gpu_->cuda.stream_destroy(stream_);
  }
  Gpu(const Gpu&) = delete;

  CudaStream stream() const { return stream_; }
  void copies(int n) {
    auto* memory = static_cast<char*>(scratch_.get());
    for (int i = 0; i < n; ++i) {
      gpu_->cuda.memcpy(memory, memory + kScratch, kScratch, kCudaMemcpyDefault, stream_);
    }
  }
  void synchronize() {
    gpu_->cuda.event_record(event_, stream_);
    while (gpu_->cuda.event_query(event_) == kCudaNotReady) std::this_thread::yield();
  }
  // How many copies take `ms`.
  int calibrate(double ms) {
    std::vector<double> times;
    for (int i = 0; i < 7; ++i) {
      const auto start = Clock::now();
      copies(50);
      synchronize();
      times.push_back(ms_since(start) / 50);
    }
    return std::max(1, static_cast<int>(ms / median(times)));
  }

 private:
  const std::shared_ptr<const GpuRuntime> gpu_ = load_gpu_runtime();
  const std::shared_ptr<void> scratch_;
  CudaStream stream_ = nullptr;
  CudaEvent event_ = nullptr;
};

double step(ProcessGroup& group, ddprun::DistributedDataParallel& ddp, Gpu& gpu, int copies) {
  group.barrier();  // All ranks begin together.
  const auto start = Clock::now();
  ddp.begin_backward();
  for (std::size_t i = kParameters; i-- > 0;) {
    gpu.copies(copies);
    ddp.mark_ready(i);
  }
  ddp.finish_backward();
  gpu.synchronize();
  return ms_since(start);
}

void measure(ProcessGroup& group, std::size_t mib, double layer_ms, int rounds) {
  Gpu gpu(group);
  group.use_stream(gpu.stream());
  const std::size_t count = (mib << 20) / sizeof(float) / kParameters;
  std::vector<std::shared_ptr<void>> memory;
  std::vector<ddprun::Parameter> parameters;
  for (std::size_t i = 0; i < kParameters; ++i) {
    memory.push_back(group.allocate(count * sizeof(float)));
    parameters.push_back({"",
                          {memory.back().get(), count, ddprun::DataType::f32},
                          {static_cast<std::int64_t>(count)}});
  }
  ddprun::DistributedDataParallel ddp(group, parameters,
                                      {.first_bucket_bytes = 1 << 20, .bucket_bytes = 6 << 20});
  const int copies = gpu.calibrate(layer_ms);
  constexpr int kLag = static_cast<int>(DevicePhases::kLag);
  std::vector<double> local, synchronised, differences, exposed, comm;
  for (int round = -3; round < rounds + kLag; ++round) {
    double without = 0;
    const auto run_local = [&] {
      const auto guard = ddp.no_sync();
      without = step(group, ddp, gpu, copies);
    };
    if (round % 2 == 0) run_local();
    const double with = step(group, ddp, gpu, copies);
    if (round % 2 != 0) run_local();
    if (round >= 0 && round < rounds) {
      local.push_back(without);
      synchronised.push_back(with);
      differences.push_back(with - without);
    }
    if (round < kLag) continue;
    exposed.push_back(static_cast<double>(ddp.last_step().exposed.count()) / 1e6);
    comm.push_back(static_cast<double>(ddp.last_step().comm.count()) / 1e6);
  }
  group.use_stream(std::nullopt);
  if (group.rank() != 0) return;
  const double difference = median(differences);
  std::printf("| %zu | %.3f | %.3f | %.3f | %.3f | %.3f | %.3f | %lld |\n", mib, median(local),
              median(synchronised), difference, median(exposed), median(exposed) / difference,
              median(comm), static_cast<long long>(ddp.total().dropped));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 60;
  const double layer_ms = argc > 3 ? std::atof(argv[3]) : 0.5;
  try {
    auto group = ProcessGroup::init({.backend = "nccl"});
    if (group.rank() == 0) {
      std::printf("ms, medians of %d rounds, %d rank(s), 8 layers of %.2f ms\n", rounds,
                  group.world_size(), layer_ms);
      std::printf(
          "| MiB | no_sync | sync | paired difference | exposed | exposed / difference | "
          "comm | dropped |\n|--|--|--|--|--|--|--|--|\n");
    }
    std::vector<std::size_t> sizes{8, 24, 64};
    if (argc > 2) sizes = {static_cast<std::size_t>(std::atoi(argv[2]))};
    for (const std::size_t mib : sizes) measure(group, mib, layer_ms, rounds);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_gpu_sync_truth: %s\n", error.what());
    return 1;
  }
}
