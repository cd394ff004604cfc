#include "worker_sdk/gpu/gpu_kernels.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "common/assert.h"
#include "ddprun/error.h"
#include "worker_sdk/gpu/gpu_runtime.h"

namespace ddprun::worker_sdk {
namespace {

const LibraryRequest kCudaDriverRequest{.title = "CUDA driver",
                                        .variable = "DDPRUN_CUDA_LIB",
                                        .names = {"libcuda.so.1"},
                                        .in_folders = {"/usr/lib/wsl/lib/libcuda.so.1"}};

constexpr std::size_t kMostBlocks = 2048;
constexpr std::size_t kMostRows = 65535;  // CUDA's own limit.
constexpr std::size_t kElementsOfThread = 4;
constexpr std::streamsize kMostBytes = std::streamsize{64} << 20;  // Size of an image.

constexpr std::array kNames{
#define X(name) "ddprun_" #name,
    DDPRUN_GPU_KERNEL_LIST(X)
#undef X
};

GpuKernel half_kernel(bool narrowing, DataType wide, DataType half) {
  DDPRUN_ASSERT(is_of(wide, TypeClass::floating));
  DDPRUN_ASSERT(is_of(half, TypeClass::half));
  const bool f32 = wide == DataType::f32, f16 = half == DataType::f16;
  if (narrowing && f32) return f16 ? GpuKernel::narrow_f32_f16 : GpuKernel::narrow_f32_bf16;
  if (narrowing) return f16 ? GpuKernel::narrow_f64_f16 : GpuKernel::narrow_f64_bf16;
  if (f32) return f16 ? GpuKernel::widen_f32_f16 : GpuKernel::widen_f32_bf16;
  return f16 ? GpuKernel::widen_f64_f16 : GpuKernel::widen_f64_bf16;
}

[[noreturn]] void refuse_kernels(const std::string& text) {
  throw Error(ErrorKind::unsupported, {.operation = "loading ddprun's GPU kernels"}, text);
}

CudaDriverApi open_driver() {
  const Library library = open_library(kCudaDriverRequest);
  if (!library.handle) refuse_kernels(library.missing);
  CudaDriverApi driver;
#define X(member, symbol, result, parameters)                                       \
  driver.member = reinterpret_cast<decltype(driver.member)>(library.find(#symbol)); \
  if (!driver.member) refuse_kernels(library.path + " has no " #symbol ": it is too old");
  DDPRUN_CUDA_DRIVER_FUNCTIONS(X)
#undef X
  return driver;
}

struct Image {
  std::string bytes;
  std::string origin;
};

Image read_image() {
  const char* file = std::getenv("DDPRUN_GPU_KERNELS");
  if (file && *file) {
    std::ifstream in(file, std::ios::binary | std::ios::ate);
    const std::streamsize size = in ? static_cast<std::streamsize>(in.tellg()) : -1;
    if (size < 0 || size > kMostBytes) {
      refuse_kernels(std::string("DDPRUN_GPU_KERNELS: cannot read ") + file);
    }
    std::string bytes(static_cast<std::size_t>(size), '\0');
    if (!in.seekg(0).read(bytes.data(), size)) {
      refuse_kernels(std::string("DDPRUN_GPU_KERNELS: cannot read ") + file);
    }
    return {std::move(bytes), file};  // PTX ends with the string's zero.
  }
  const KernelImage image = built_in_kernels();
  if (image.bytes.empty()) {
    refuse_kernels(
        "this ddprun was built without nvcc (CUDA 12 or later), so that it has none; "
        "DDPRUN_GPU_KERNELS may name a fatbin of gpu_kernels.cu");
  }
  return {std::string(image.bytes), std::string(image.made_by)};
}

std::string text_of(const CudaDriverApi& driver, int status) {
  const char* text = nullptr;
  driver.error_string(status, &text);
  return text ? text : "error " + std::to_string(status);
}

}  // namespace

// CUDA 11 makes a device's context when it is first used, and cudaFree uses it.
GpuKernels::GpuKernels(std::shared_ptr<const GpuRuntime> gpu, int device)
    : gpu_(std::move(gpu)), driver_(open_driver()) {
  const Image image = read_image();
  gpu_->cuda.set_device(device);
  gpu_->cuda.free(nullptr);
  require(driver_.get_context(&context_), "cuCtxGetCurrent");
  if (const int status = driver_.load(&module_, image.bytes.c_str()); status != kCudaSuccess) {
    refuse_kernels("the driver, for CUDA " + cuda_version_text(gpu_->driver_version) +
                   ", does not take those of " + image.origin + ": " + text_of(driver_, status));
  }
  for (const char* name : kNames) {
    functions_.emplace_back();
    const int status = driver_.function(&functions_.back(), module_, name);
    if (status == kCudaSuccess) continue;
    driver_.unload(module_);
    refuse_kernels(std::string("there is no ") + name + " among those of " + image.origin);
  }
}

GpuKernels::~GpuKernels() {
  driver_.set_context(context_);
  driver_.unload(module_);
}

void GpuKernels::require(int status, const std::string& what) const {
  if (status == kCudaSuccess) return;
  throw Error(ErrorKind::system, {.operation = what}, "CUDA says: " + text_of(driver_, status));
}

GpuKernels::Grid GpuKernels::grid_for(std::size_t threads, std::size_t rows) {
  const std::size_t blocks = (threads + kernels::kThreads - 1) / kernels::kThreads;
  return {static_cast<unsigned>(std::clamp<std::size_t>(blocks, 1, kMostBlocks)),
          static_cast<unsigned>(std::clamp<std::size_t>(rows, 1, kMostRows))};
}

// The calling thread may have made another device current since, and keeps that one.
void GpuKernels::submit(GpuKernel kernel, Grid grid, Stream stream, void** arguments) const {
  CudaContext before = nullptr;
  driver_.get_context(&before);
  require(driver_.set_context(context_), "cuCtxSetCurrent");
  const int status = driver_.launch(functions_[static_cast<std::size_t>(kernel)], grid.x, grid.y, 1,
                                    kernels::kThreads, 1, 1, 0, static_cast<CudaStream>(stream),
                                    arguments, nullptr);
  if (before && before != context_) driver_.set_context(before);
  require(status, "cuLaunchKernel");
}

void GpuKernels::narrow(const Buffer& from, const Buffer& to, float factor, Stream stream) const {
  DDPRUN_ASSERT(from.count == to.count);
  if (from.count == 0) return;
  launch(half_kernel(true, from.type, to.type), grid_for(from.count / kElementsOfThread), stream,
         from.data, to.data, from.count, factor);
}

void GpuKernels::widen(const Buffer& from, const Buffer& to, Stream stream) const {
  DDPRUN_ASSERT(from.count == to.count);
  if (from.count == 0) return;
  launch(half_kernel(false, to.type, from.type), grid_for(from.count / kElementsOfThread), stream,
         from.data, to.data, from.count);
}

}  // namespace ddprun::worker_sdk
