// The part of the CUDA driver that loads and launches kernels, for fake_cuda.cc's streams. The
// kernels are those of gpu_kernels.cu itself, compiled for the host: whatever image is loaded, its
// functions are these. A block's threads take turns, blocks too.
//
// FAKE_CUDA: "kernels=none" has no code for this card.

#include <cstring>
#include <functional>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "tests/fakes/fake_cuda.h"
#include "worker_sdk/gpu/gpu_kernels.cu"

using ddprun::test::injected;
using ddprun::worker_sdk::CudaContext;
using ddprun::worker_sdk::CudaFunction;
using ddprun::worker_sdk::CudaModule;
using ddprun::worker_sdk::CudaStream;

namespace {

constexpr int kInvalidImage = 200;
constexpr int kInvalidContext = 201;
constexpr int kNoBinaryForGpu = 209;
constexpr int kNotFound = 500;
constexpr char kFatbin[] = "\x50\xed\x55\xba";
constexpr char kFakeImage[] = "fake";

struct Grid {
  kernels::Place blocks, threads;
};

// Takes a copy of the arguments, as the real one does, and returns what is to be done.
using Kernel = std::function<std::function<void()>(Grid, void**)>;

template <class... Parameters, std::size_t... kAt>
std::tuple<Parameters...> copy_of(void** arguments, std::index_sequence<kAt...>) {
  return {*static_cast<Parameters*>(arguments[kAt])...};
}

template <class... Parameters>
Kernel kernel_of(void (*body)(Parameters...)) {
  return [body](Grid grid, void** given) -> std::function<void()> {
    const auto arguments = copy_of<Parameters...>(given, std::index_sequence_for<Parameters...>{});
    return [=] {
      kernels::gridDim = grid.blocks;
      kernels::blockDim = grid.threads;
      for (kernels::blockIdx.y = 0; kernels::blockIdx.y < grid.blocks.y; ++kernels::blockIdx.y) {
        for (kernels::blockIdx.x = 0; kernels::blockIdx.x < grid.blocks.x; ++kernels::blockIdx.x) {
          std::apply(body, arguments);
        }
      }
    };
  };
}

std::map<std::string, Kernel>& all_kernels() {
  static std::map<std::string, Kernel> all{
#define X(name) {"ddprun_" #name, kernel_of(ddprun_##name)},
      DDPRUN_GPU_KERNEL_LIST(X)
#undef X
  };
  return all;
}

// As with CUDA 11, where cudaSetDevice() alone makes none current.
thread_local CudaContext context = nullptr;

}  // namespace

extern "C" {

int cudaSetDevice(int device);

// A device's context is recognised by its number alone.
int cuCtxGetCurrent(CudaContext* current) {
  context =
      reinterpret_cast<CudaContext>(static_cast<std::size_t>(ddprun::test::current_device()) + 1);
  *current = context;
  return 0;
}

int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  *flags = 0;
  *active = ddprun::test::was_used(device) ? 1 : 0;
  return 0;
}

int cuCtxSetCurrent(CudaContext current) {
  context = current;
  return cudaSetDevice(static_cast<int>(reinterpret_cast<std::size_t>(current)) - 1);
}

int cuModuleLoadData(CudaModule* module, const void* image) {
  if (injected("FAKE_CUDA", "kernels") == "none") return kNoBinaryForGpu;
  if (std::memcmp(image, kFatbin, 4) != 0 && std::memcmp(image, kFakeImage, 4) != 0) {
    return kInvalidImage;
  }
  *module = reinterpret_cast<CudaModule>(new int(1));
  return 0;
}

int cuModuleUnload(CudaModule module) {
  delete reinterpret_cast<int*>(module);
  return 0;
}

int cuModuleGetFunction(CudaFunction* function, CudaModule, const char* name) {
  const auto found = all_kernels().find(name);
  if (found == all_kernels().end()) return kNotFound;
  *function = reinterpret_cast<CudaFunction>(&found->second);
  return 0;
}

int cuLaunchKernel(CudaFunction function, unsigned x, unsigned y, unsigned, unsigned threads,
                   unsigned, unsigned, unsigned, CudaStream stream, void** arguments, void**) {
  if (!context) return kInvalidContext;
  const auto& kernel = *reinterpret_cast<Kernel*>(function);
  ddprun::test::enqueue(stream, kernel({{x, y}, {threads, 1}}, arguments));
  return 0;
}

int cuGetErrorString(int status, const char** text) {
  *text = status == kNoBinaryForGpu ? "no kernel image is available for execution on the device"
                                    : "an error of the fake driver";
  return 0;
}
}
