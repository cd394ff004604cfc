// What does an all_reduce of a bucket cost on the backend nccl, beside NCCL's own call?
//
//   ddprun --nproc-per-node 1 bench_nccl_overhead [rounds]
//
// Both go through the same loaded libraries, each over a communicator of its own, on the same
// array: ours by ProcessGroup::all_reduce_async and wait() in a stream, as DistributedDataParallel
// does it; theirs by ncclAllReduce in a stream, with an event before and one after it that the
// stream waits for, without which buckets would not overlap with the backward pass. Theirs twice:
// over a blocking communicator, as most programs have it, and over a non-blocking one, whose end
// can be awaited with a deadline, and which ours is. Each round runs all, in turn, 20 buckets each.
// "Host": until the last call returned. "Step": until the stream was done.

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
  Bare(ProcessGroup& group, std::shared_ptr<const GpuRuntime> gpu, bool blocking)
      : gpu_(std::move(gpu)) {
    const CudaApi& cuda = gpu_->cuda;
    require(cuda.set_device(group.device()), "cudaSetDevice");
    require(cuda.stream_create(&stream, kCudaStreamNonBlocking, 0), "cudaStreamCreate");
    require(cuda.stream_create(&side_, kCudaStreamNonBlocking, -1), "cudaStreamCreate");
    for (CudaEvent* event : {&before_, &after_}) {
      require(cuda.event_create(event, kCudaEventDisableTiming), "cudaEventCreate");
    }
    NcclUniqueId id;
    if (group.rank() == 0) require(gpu_->nccl.unique_id(&id), "ncclGetUniqueId");
    const auto received = ddprun::broadcast_bytes(group, {id.internal, sizeof id.internal}, 0);
    std::copy(received.begin(), received.end(), id.internal);
    NcclConfig config;
    config.blocking = blocking ? 1 : 0;
    settle(gpu_->nccl.init(&comm_, group.world_size(), id, group.rank(), &config),
           "ncclCommInitRank");
  }
  ~Bare() {
    settle(gpu_->nccl.finalize(comm_), "ncclCommFinalize");
    gpu_->nccl.destroy(comm_);
    for (CudaEvent event : {before_, after_}) gpu_->cuda.event_destroy(event);
    for (CudaStream each : {side_, stream}) gpu_->cuda.stream_destroy(each);
  }
  Bare(const Bare&) = delete;

  void all_reduce(void* data, std::size_t count) {
    const CudaApi& cuda = gpu_->cuda;
    cuda.event_record(before_, stream);
    cuda.stream_wait(side_, before_, 0);
    settle(gpu_->nccl.all_reduce(data, data, count, kNcclFloat32, kNcclAvg, comm_, side_),
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
  // Before the event after it can be recorded, NCCL must have put the operation into the stream.
  void settle(int status, const char* what) {
    while (status == kNcclInProgress) {
      require(gpu_->nccl.async_error(comm_, &status), "ncclCommGetAsyncError");
      if (status == kNcclInProgress) std::this_thread::yield();
    }
    require(status, what);
  }

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

// Ours, NCCL's, and NCCL's without blocking, in each round.
struct Costs {
  std::vector<double> host[3], step[3];
  std::vector<double> extra, ratio;  // Of ours to NCCL's.

  void add(const Cost (&cost)[3]) {
    for (const int kind : {0, 1, 2}) {
      host[kind].push_back(cost[kind].host_us);
      step[kind].push_back(cost[kind].step_us);
    }
    extra.push_back(cost[0].host_us - cost[1].host_us);
    ratio.push_back(cost[0].step_us / cost[1].step_us);
  }
  void print(std::size_t kib) const {
    std::printf("| %zu | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %.1f | %.3f |\n", kib,
                median(host[0]), median(host[1]), median(host[2]), median(extra), median(step[0]),
                median(step[1]), median(step[2]), median(ratio));
    std::fflush(stdout);
  }
};

void compare(ProcessGroup& group, Bare& bare, Bare& patient, std::size_t kib, int rounds) {
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
  const auto of = [&](Bare& each) {
    for (int b = 0; b < kBuckets; ++b) each.all_reduce(memory.get(), count);
  };
  Costs costs;
  for (int round = -3; round < rounds; ++round) {
    Cost cost[3];
    for (int i = 0; i < 3; ++i) {
      const int turn = (round + 3 + i) % 3;
      if (turn == 0) cost[0] = run(group, bare, ours);
      if (turn == 1) cost[1] = run(group, bare, [&] { of(bare); });
      if (turn == 2) cost[2] = run(group, patient, [&] { of(patient); });
    }
    if (round >= 0) costs.add(cost);
  }
  if (group.rank() == 0) costs.print(kib);
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(1, std::atoi(argv[1])) : 50;
  try {
    auto group = ProcessGroup::init({.backend = "nccl"});
    Bare bare(group, load_gpu_runtime(), true), patient(group, load_gpu_runtime(), false);
    group.use_stream(bare.stream);
    if (group.rank() == 0) {
      std::printf("us a bucket, medians of %d rounds of %d buckets, %d rank(s)\n", rounds, kBuckets,
                  group.world_size());
      std::printf(
          "| KiB | host, ours | host, NCCL | host, NCCL non-blocking | paired difference | "
          "step, ours | step, NCCL | step, NCCL non-blocking | paired ratio |\n"
          "|--|--|--|--|--|--|--|--|--|\n");
    }
    for (const std::size_t kib : {64, 1024, 25 * 1024}) compare(group, bare, patient, kib, rounds);
    group.use_stream(std::nullopt);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "bench_nccl_overhead: %s\n", error.what());
    return 1;
  }
}
