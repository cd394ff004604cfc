// What does an all_reduce of a bucket cost on the backend nccl, beside NCCL's own call?
//
//   ddprun --nproc-per-node 1 bench_nccl_overhead [rounds]
//
// Both go through the same loaded libraries, each over a communicator of its own, on the same
// array: ours by ProcessGroup::all_reduce_async and wait() in a stream, as DistributedDataParallel
// does it; theirs by ncclAllReduce in a stream, with an event before and one after it that the
// stream waits for, without which buckets would not overlap with the backward pass. Each round runs
// both, in turn, 20 buckets each. "Host": until the last call returned. "Step": until the stream
// was done.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <thread>
#include <vector>

#include "ddprun/ddprun.h"
#include "worker_sdk/base/operation.h"
#include "worker_sdk/gpu/gpu_runtime.h"

namespace {

using namespace ddprun::worker_sdk;
using ddprun::ProcessGroup;

constexpr int kBuckets = 20;

double us_since(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

void require(int status, const char* what) {
  if (status != 0) throw std::runtime_error(std::string(what) + " failed");
}

struct Cost {
  double host_us = 0, step_us = 0;  // Of one bucket.
};

// NCCL and CUDA without anything of ours around them.
class Bare {
 public:
  Bare(ProcessGroup& group, std::shared_ptr<const GpuRuntime> gpu) : gpu_(std::move(gpu)) {
    const CudaApi& cuda = gpu_->cuda;
    require(cuda.set_device(group.device()), "cudaSetDevice");
    require(cuda.stream_create(&stream, kCudaStreamNonBlocking, 0), "cudaStreamCreate");
    require(cuda.stream_create(&side_, kCudaStreamNonBlocking, -1), "cudaStreamCreate");
    for (CudaEvent* event : {&before_, &after_}) {
      require(cuda.event_create(event, kCudaEventDisableTiming), "cudaEventCreate");
    }
    NcclUniqueId id;
    if (group.rank() == 0) require(gpu_->nccl.unique_id(&id), "ncclGetUniqueId");
    const auto told = ddprun::broadcast_bytes(group, {id.internal, sizeof id.internal}, 0);
    std::copy(told.begin(), told.end(), id.internal);
    NcclConfig config;
    config.blocking = 1;  // As most programs have it; ours are not.
    require(gpu_->nccl.init(&comm_, group.world_size(), id, group.rank(), &config),
            "ncclCommInitRank");
  }
  ~Bare() {
    gpu_->nccl.finalize(comm_);
    gpu_->nccl.destroy(comm_);
    for (CudaEvent event : {before_, after_}) gpu_->cuda.event_destroy(event);
    for (CudaStream each : {side_, stream}) gpu_->cuda.stream_destroy(each);
  }
  Bare(const Bare&) = delete;

  void all_reduce(void* data, std::size_t count) {
    const CudaApi& cuda = gpu_->cuda;
    cuda.event_record(before_, stream);
    cuda.stream_wait(side_, before_, 0);
    require(gpu_->nccl.all_reduce(data, data, count, kNcclFloat32, kNcclAvg, comm_, side_),
            "ncclAllReduce");
    cuda.event_record(after_, side_);
    cuda.stream_wait(stream, after_, 0);
  }
  void synchronize() {
    gpu_->cuda.event_record(before_, stream);
    while (gpu_->cuda.event_query(before_) == kCudaNotReady) std::this_thread::yield();
  }

  CudaStream stream = nullptr;

 private:
  const std::shared_ptr<const GpuRuntime> gpu_;
  CudaStream side_ = nullptr;
  CudaEvent before_ = nullptr, after_ = nullptr;
  NcclComm comm_ = nullptr;
};

template <class Step>
Cost run(ProcessGroup& group, Bare& bare, const Step& step) {
  group.barrier();
  bare.synchronize();
  const auto start = Clock::now();
  step();
  const double host = us_since(start);
  bare.synchronize();
  return {host / kBuckets, us_since(start) / kBuckets};
}

void compare(ProcessGroup& group, Bare& bare, std::size_t kib, int rounds) {
  const std::size_t count = kib * 1024 / sizeof(float);
  const auto memory = group.allocate(count * sizeof(float));
  const ddprun::Buffer array{memory.get(), count, ddprun::DataType::f32};
  const auto ours = [&] {
    std::vector<ddprun::Work> works;
    for (int b = 0; b < kBuckets; ++b) {
      works.push_back(group.all_reduce_async(array, ddprun::ReduceOp::avg));
    }
    for (auto& work : works) work.wait();
  };
  const auto theirs = [&] {
    for (int b = 0; b < kBuckets; ++b) bare.all_reduce(memory.get(), count);
  };
  std::vector<double> host[2], step[2], extra, ratio;
  for (int round = -3; round < rounds; ++round) {
    Cost cost[2];
    for (const int turn : {round & 1, 1 - (round & 1)}) {
      cost[turn] = turn == 0 ? run(group, bare, ours) : run(group, bare, theirs);
    }
    if (round < 0) continue;
    for (const int who : {0, 1}) {
      host[who].push_back(cost[who].host_us);
      step[who].push_back(cost[who].step_us);
    }
    extra.push_back(cost[0].host_us - cost[1].host_us);
    ratio.push_back(cost[0].step_us / cost[1].step_us);
  }
  if (group.rank() != 0) return;
  std::printf("| %zu | %.1f | %.1f | %.1f | %.1f | %.1f | %.3f |\n", kib, median(host[0]),
              median(host[1]), median(extra), median(step[0]), median(step[1]), median(ratio));
  std::fflush(stdout);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 50;
  try {
    auto group = ProcessGroup::init({.backend = "nccl"});
    Bare bare(group, load_gpu_runtime());
    group.use_stream(bare.stream);
    if (group.rank() == 0) {
      std::printf("us a bucket, medians of %d rounds of %d buckets, %d rank(s)\n", rounds, kBuckets,
                  group.world_size());
      std::printf(
          "| KiB | host, ours | host, NCCL | paired difference | step, ours | step, NCCL | "
          "paired ratio |\n|--|--|--|--|--|--|--|\n");
    }
    for (const std::size_t kib : {64, 1024, 25 * 1024}) compare(group, bare, kib, rounds);
    group.use_stream(std::nullopt);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_nccl_overhead: %s\n", error.what());
    return 1;
  }
}
