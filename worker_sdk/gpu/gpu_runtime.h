#pragma once
// The CUDA runtime and NCCL of this machine, as tables of functions: loaded at run time, so that
// one build of the SDK serves machines with and without a GPU; and CUDA's events. nccl_join.cc
// loads both if a job requests the backend nccl, ForeignStreams only CUDA.

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "worker_sdk/gpu/gpu_abi.h"
#include "worker_sdk/transport/backend.h"

namespace ddprun::worker_sdk {

// Finds a shared library that may or may not be on this machine, and reports where it searched.
struct LibraryRequest {
  std::string title;                    // "NCCL"
  std::string variable;                 // Names the file, if set: then nothing else is tried.
  std::vector<std::string> names;       // For the loader's own search path.
  std::vector<std::string> in_folders;  // Patterns below each Python package folder, or absolute.
};

struct Library {
  void* handle = nullptr;  // Never closed: threads of it may outlive us.
  std::string path;
  std::string missing;  // Why there is none.

  void* find(const char* symbol) const;
};

Library open_library(const LibraryRequest& request);

// The folders in which pip and Debian put Python packages here, as glob(7) patterns.
std::vector<std::string> python_package_patterns();

// CUDA events that are used again. A step needs two for each bucket and some for the sync timer,
// and to make one takes longer than to record it. Part of a GpuRuntime; nccl_pending.cc takes them.
// Usable from any thread.
class GpuEventPool {
 public:
  explicit GpuEventPool(const CudaApi& cuda) : cuda_(cuda) {}
  ~GpuEventPool();
  GpuEventPool(const GpuEventPool&) = delete;
  GpuEventPool& operator=(const GpuEventPool&) = delete;

  // An event of `device`, which must be the current one. What was recorded in it before is no
  // longer used. Returns CUDA's status.
  int take(int device, unsigned flags, CudaEvent* event);
  // The event may be recorded in a stream that has not reached it yet.
  void give_back(int device, unsigned flags, CudaEvent event) noexcept;

 private:
  static constexpr std::size_t kKept = 1024;  // Per kind; more are destroyed.

  const CudaApi cuda_;
  std::mutex mutex_;
  std::map<std::pair<int, unsigned>, std::vector<CudaEvent>> free_;  // By device and flags.
};

// What an NCCL of some version supports.
struct NcclFeatures {
  bool non_blocking = false;   // 2.14: required, as nothing could be aborted without it.
  bool memory = false;         // 2.19: ncclMemAlloc, ncclCommRegister.
  bool scalable_init = false;  // 2.23: several bootstrap roots.
  bool windows = false;        // 2.27: symmetric memory.
  bool shrink = false;         // 2.27.
  bool revoke = false;         // 2.28.7.
  bool grow = false;           // 2.29.2.
  bool shared_gpu = false;     // 2.30: several ranks on one GPU, NCCL_MULTI_RANK_GPU_ENABLE.
};
NcclFeatures features_of(int nccl_version);  // From ncclGetVersion: 22809 is 2.28.9.

std::string nccl_version_text(int version);  // "2.28.9"
std::string cuda_version_text(int version);  // "13.0"

struct GpuRuntime {
  CudaApi cuda;
  NcclApi nccl;
  NcclFeatures features;
  // The driver's: has the device been used? Null: unknown.
  int (*primary_context)(int device, unsigned* flags, int* active) = nullptr;
  std::string cuda_path, nccl_path;
  int nccl_version = 0, runtime_version = 0, driver_version = 0;
  int devices = 0;  // That this process may use.
  std::shared_ptr<GpuEventPool> events;

  std::string describe() const;  // "NCCL 2.28.9 (/usr/lib/...), CUDA 13.0 (...), driver 13.0"
};

// Makes a device the calling thread's current one, and restores the one before, which the program's
// kernels are to use. Does not restore a device that was never used: it would get a context for
// nothing.
class GpuDeviceGuard {
 public:
  GpuDeviceGuard(const GpuRuntime& gpu, int device);
  ~GpuDeviceGuard();
  GpuDeviceGuard(const GpuDeviceGuard&) = delete;

  int status() const { return status_; }  // CUDA's, of making it current.

 private:
  const GpuRuntime& gpu_;
  const int device_;
  int before_;
  int status_;
};

// Queries CUDA, which may refuse, without a trace: a capture of the program in another thread goes
// on, and cudaGetLastError has an error for the program if it had one before (CUDA keeps one only,
// so it may be another).
template <class Query>
int query_quietly(const CudaApi& cuda, const Query& query) {
  int mode = kCudaCaptureRelaxed;
  cuda.exchange_capture_mode(&mode);
  const bool clean = cuda.peek_error() == kCudaSuccess;
  const int status = query();
  if (status != kCudaSuccess && clean) cuda.last_error();
  cuda.exchange_capture_mode(&mode);
  return status;
}

// Throws Error(system) with CUDA's text if there is an error, which cudaGetLastError then no longer
// has.
void require(const GpuRuntime& gpu, int status, const char* what);

// Throws Error(unsupported) that names what is missing and where it was searched.
std::shared_ptr<const GpuRuntime> load_gpu_runtime();
// Without NCCL: its functions are null.
std::shared_ptr<const GpuRuntime> load_cuda_runtime();

// CUDA events as marks in a stream: for the backend nccl, and for programs that have a CUDA of
// their own, such as PyTorch's.

bool is_captured(const GpuRuntime& gpu, CudaStream stream);

// A CUDA event that ends with its owner.
class GpuEvent final : public DeviceMark {
 public:
  GpuEvent(std::shared_ptr<const GpuRuntime> gpu, int device, unsigned flags);
  ~GpuEvent() override;
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;

  void record(CudaStream stream);
  void hold_up(CudaStream stream) const;  // Later work in the stream waits for the event.
  bool passed() const override;
  // kCudaSuccess: passed; kCudaNotReady; or an error of the device, which carries out nothing more.
  int poll() const;
  std::chrono::nanoseconds until(const DeviceMark& end) const override;

 private:
  const std::shared_ptr<const GpuRuntime> gpu_;
  const int device_;
  const unsigned flags_;
  CudaEvent event_ = nullptr;  // From gpu_->events.
};

// Marks in the streams of a program that another library drives: none of them is worth an error.
class ForeignStreams final : public StreamMarks {
 public:
  // Throws Error(unsupported) if this process has no CUDA, or no GPU.
  ForeignStreams() : gpu_(load_cuda_runtime()) {}

  void use_device(int device) { device_ = device; }
  // Null also if CUDA refuses, as after an error of the device.
  std::shared_ptr<const DeviceMark> mark(Stream stream) override;

 private:
  const std::shared_ptr<const GpuRuntime> gpu_;
  int device_ = 0;
};

}  // namespace ddprun::worker_sdk
