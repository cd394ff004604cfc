#include "worker_sdk/gpu/gpu_runtime.h"

#include <dlfcn.h>
#include <glob.h>

#include <sstream>

#include "common/system/own_process.h"
#include "ddprun/error.h"

namespace ddprun::worker_sdk {
namespace {

std::vector<std::string> matches(const std::string& pattern) {
  glob_t found{};
  std::vector<std::string> paths;
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) {
    paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  }
  ::globfree(&found);
  return paths;
}

std::string last_error() {
  const char* text = ::dlerror();
  return text ? text : "unknown error";
}

std::string path_of(const Library& library, const std::string& name) {
  char folder[4096] = {};
  if (::dlinfo(library.handle, RTLD_DI_ORIGIN, folder) != 0) return name;
  return name.find('/') == std::string::npos ? std::string(folder) + "/" + name : name;
}

bool open(Library& library, const std::string& name, int more = 0) {
  library.handle = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | more);
  if (library.handle) library.path = path_of(library, name);
  return library.handle != nullptr;
}

std::vector<std::string> candidates(const LibraryRequest& request) {
  std::vector<std::string> paths;
  for (const std::string& inside : request.in_folders) {
    std::vector<std::string> patterns{inside};
    if (inside.front() != '/') {
      patterns = python_package_patterns();
      for (std::string& folder : patterns) folder += "/" + inside;
    }
    for (const std::string& pattern : patterns) {
      for (std::string& path : matches(pattern)) paths.push_back(std::move(path));
    }
  }
  return paths;
}

std::string missing_text(const LibraryRequest& request, const std::string& broken) {
  std::string text =
      "no " + request.title + " found: " + request.variable + " is not set, the loader has";
  for (const std::string& name : request.names) {
    text += (&name == &request.names.front() ? " no " : " or ") + name;
  }
  text += ", and";
  for (const std::string& inside : request.in_folders) {
    text += (&inside == &request.in_folders.front() ? " there is no " : " or ") + inside;
  }
  text += " (looked below " + std::to_string(python_package_patterns().size()) +
          " Python package folders)";
  return broken.empty() ? text : text + "; " + broken;
}

}  // namespace

void* Library::find(const char* symbol) const { return ::dlsym(handle, symbol); }

std::vector<std::string> python_package_patterns() {
  std::vector<std::string> patterns;
  for (const char* prefix : {"VIRTUAL_ENV", "CONDA_PREFIX"}) {
    const std::string root = environment_variable(prefix);
    if (!root.empty()) patterns.push_back(root + "/lib/python3*/site-packages");
  }
  std::istringstream paths(environment_variable("PYTHONPATH"));
  for (std::string path; std::getline(paths, path, ':');) {
    if (!path.empty()) patterns.push_back(path);
  }
  std::istringstream programs(
      environment_variable("PATH"));  // A virtual environment that is not activated.
  for (std::string path; std::getline(programs, path, ':');) {
    const bool environment = path.ends_with("/bin") && !matches(path + "/python3").empty();
    if (environment) patterns.push_back(path + "/../lib/python3*/site-packages");
  }
  const std::string home = environment_variable("HOME");
  if (!home.empty()) patterns.push_back(home + "/.local/lib/python3*/site-packages");
  patterns.insert(patterns.end(),
                  {"/usr/local/lib/python3*/dist-packages", "/usr/local/lib/python3*/site-packages",
                   "/usr/lib/python3/dist-packages"});
  return patterns;
}

Library open_library(const LibraryRequest& request) {
  Library library;
  const std::string given = environment_variable(request.variable.c_str());
  if (!given.empty()) {
    if (!open(library, given))
      library.missing = request.variable + " cannot be loaded: " + last_error();
    return library;
  }
  for (const int loaded_already : {RTLD_NOLOAD, 0}) {  // First the program's own library.
    for (const std::string& name : request.names) {
      if (open(library, name, loaded_already)) return library;
    }
  }
  std::string broken;  // The library is there, but a dependency is missing.
  for (const std::string& path : candidates(request)) {
    if (open(library, path)) return library;
    broken = last_error();
  }
  library.missing = missing_text(request, broken);
  return library;
}

GpuEventPool::~GpuEventPool() {
  for (const auto& [kind, events] : free_) {
    for (CudaEvent event : events) cuda_.event_destroy(event);
  }
}

int GpuEventPool::take(int device, unsigned flags, CudaEvent* event) {
  {
    const std::lock_guard lock(mutex_);
    auto& events = free_[{device, flags}];
    if (events.capacity() == 0) events.reserve(kKept);  // So give_back() allocates nothing.
    if (!events.empty()) {
      *event = events.back();
      events.pop_back();
      return kCudaSuccess;
    }
  }
  return cuda_.event_create(event, flags);
}

void GpuEventPool::give_back(int device, unsigned flags, CudaEvent event) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const auto events = free_.find({device, flags});
    if (events != free_.end() && events->second.size() < kKept) {
      events->second.push_back(event);
      return;
    }
  }
  cuda_.event_destroy(event);
}

namespace {

const LibraryRequest kCudaRequest{
    .title = "CUDA runtime",
    .variable = "DDPRUN_CUDART_LIB",
    .names = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0", "libcudart.so"},
    .in_folders = {"nvidia/cu13/lib/libcudart.so.*", "nvidia/cuda_runtime/lib/libcudart.so.*",
                   "torch/lib/libcudart*.so.*", "/usr/local/cuda/lib64/libcudart.so.*"}};

const LibraryRequest kNcclRequest{
    .title = "NCCL",
    .variable = "DDPRUN_NCCL_LIB",
    .names = {"libnccl.so.2", "libnccl.so"},
    .in_folders = {"nvidia/nccl/lib/libnccl.so.*", "torch/lib/libnccl.so.*",
                   "/usr/local/cuda/lib64/libnccl.so.*"}};

const LibraryRequest kDriverRequest{.title = "NVIDIA driver",
                                    .variable = "DDPRUN_CUDA_LIB",
                                    .names = {"libcuda.so.1"},
                                    .in_folders = {}};

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorKind::unsupported, {.operation = "loading the backend nccl"}, text);
}

template <class Function>
void bind(const Library& library, const char* symbol, Function*& slot, bool required) {
  slot = reinterpret_cast<Function*>(library.find(symbol));
  if (!slot && required) refuse(library.path + " has no " + symbol + ": it is too old");
}

void bind_cuda(GpuRuntime& gpu) {
  const Library library = open_library(kCudaRequest);
  if (!library.handle) refuse(library.missing);
  gpu.cuda_path = library.path;
#define X(member, symbol, result, parameters) bind(library, #symbol, gpu.cuda.member, true);
  DDPRUN_CUDA_FUNCTIONS(X)
#undef X
}

// If there is a GPU, the runtime has loaded the driver already.
void bind_driver(GpuRuntime& gpu) {
  const Library library = open_library(kDriverRequest);
  if (library.handle) {
    bind(library, "cuDevicePrimaryCtxGetState", gpu.primary_context, false);
  }
}

void bind_nccl(GpuRuntime& gpu) {
  const Library library = open_library(kNcclRequest);
  if (!library.handle) refuse(library.missing);
  gpu.nccl_path = library.path;
  bind(library, "ncclGetVersion", gpu.nccl.version, true);
  if (gpu.nccl.version(&gpu.nccl_version) != kNcclSuccess) {
    refuse(library.path + " does not report its version");
  }
  gpu.features = features_of(gpu.nccl_version);
  if (!gpu.features.non_blocking) {
    refuse(library.path + " is NCCL " + nccl_version_text(gpu.nccl_version) +
           "; 2.14 or later is needed, whose communicators can be aborted");
  }
#define X(member, symbol, result, parameters) bind(library, #symbol, gpu.nccl.member, true);
  DDPRUN_NCCL_FUNCTIONS(X)
#undef X
#define X(member, symbol, result, parameters) bind(library, #symbol, gpu.nccl.member, false);
  DDPRUN_NCCL_OPTIONAL_FUNCTIONS(X)
#undef X
}

// Many machines have a runtime, but no GPU; the result of its first call decides.
void count_devices(GpuRuntime& gpu) {
  gpu.cuda.runtime_version(&gpu.runtime_version);
  gpu.cuda.driver_version(&gpu.driver_version);  // 0: there is no driver.
  const int status = gpu.cuda.device_count(&gpu.devices);
  if (status == kCudaSuccess && gpu.devices > 0) return;
  const std::string runtime =
      "the CUDA runtime " + cuda_version_text(gpu.runtime_version) + " (" + gpu.cuda_path + ")";
  if (gpu.driver_version == 0) {
    refuse(runtime + " finds no NVIDIA driver (libcuda.so.1) on this machine");
  }
  if (status == kCudaInsufficientDriver) {
    refuse(runtime + " needs a newer driver than this machine's, which is for CUDA " +
           cuda_version_text(gpu.driver_version));
  }
  if (status == kCudaSuccess || status == kCudaNoDevice) {
    refuse(runtime +
           " finds no GPU that this process may use; see nvidia-smi and "
           "CUDA_VISIBLE_DEVICES");
  }
  refuse(runtime + " cannot count the GPUs: " + gpu.cuda.error_string(status));
}

}  // namespace

NcclFeatures features_of(int nccl_version) {
  const auto since = [&](int version) { return nccl_version >= version; };
  return {.non_blocking = since(21400),
          .memory = since(21900),
          .scalable_init = since(22300),
          .windows = since(22700),
          .shrink = since(22700),
          .revoke = since(22807),
          .grow = since(22902),
          .shared_gpu = since(23000)};
}

// 2.9 and later are written as 20900, earlier versions as 2804.
std::string nccl_version_text(int version) {
  const int major = version < 10000 ? version / 1000 : version / 10000;
  const int minor = version < 10000 ? version % 1000 / 100 : version % 10000 / 100;
  return std::to_string(major) + "." + std::to_string(minor) + "." + std::to_string(version % 100);
}

std::string cuda_version_text(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version % 1000 / 10);
}

std::string GpuRuntime::describe() const {
  return "NCCL " + nccl_version_text(nccl_version) + " (" + nccl_path + "), CUDA " +
         cuda_version_text(runtime_version) + " (" + cuda_path + "), driver for CUDA " +
         cuda_version_text(driver_version);
}

std::shared_ptr<const GpuRuntime> load_cuda_runtime() {
  auto gpu = std::make_shared<GpuRuntime>();
  bind_cuda(*gpu);
  bind_driver(*gpu);
  count_devices(*gpu);
  gpu->events = std::make_shared<GpuEventPool>(gpu->cuda);
  return gpu;
}

std::shared_ptr<const GpuRuntime> load_gpu_runtime() {
  auto gpu = std::make_shared<GpuRuntime>();
  bind_cuda(*gpu);
  bind_driver(*gpu);
  bind_nccl(*gpu);
  count_devices(*gpu);
  gpu->events = std::make_shared<GpuEventPool>(gpu->cuda);
  if (!gpu->features.memory) gpu->nccl.mem_alloc = nullptr;
  if (!gpu->nccl.mem_free || !gpu->nccl.comm_deregister) gpu->nccl.mem_alloc = nullptr;
  return gpu;
}

GpuDeviceGuard::GpuDeviceGuard(const GpuRuntime& gpu, int device)
    : gpu_(gpu), device_(device), before_(device) {
  if (gpu_.cuda.get_device(&before_) != kCudaSuccess) before_ = device;
  status_ = gpu_.cuda.set_device(device);
}

GpuDeviceGuard::~GpuDeviceGuard() {
  if (before_ == device_ || !gpu_.primary_context) return;
  unsigned flags = 0;
  int active = 0;
  if (gpu_.primary_context(before_, &flags, &active) == kCudaSuccess && active != 0) {
    gpu_.cuda.set_device(before_);
  }
}

void require(const GpuRuntime& gpu, int status, const char* what) {
  if (status == kCudaSuccess) return;
  gpu.cuda.last_error();
  throw Error(ErrorKind::system, {.operation = what},
              std::string("CUDA says: ") + gpu.cuda.error_string(status));
}

// The default stream cannot be captured, and asking about it may end a capture.
bool is_captured(const GpuRuntime& gpu, CudaStream stream) {
  if (!stream) return false;
  int status = kCudaNotCaptured;
  const int result =
      query_quietly(gpu.cuda, [&] { return gpu.cuda.is_capturing(stream, &status); });
  return result == kCudaSuccess && status != kCudaNotCaptured;
}

GpuEvent::GpuEvent(std::shared_ptr<const GpuRuntime> gpu, int device, unsigned flags)
    : gpu_(std::move(gpu)), device_(device), flags_(flags) {
  const GpuDeviceGuard current(*gpu_, device);
  require(*gpu_, current.status(), "cudaSetDevice");
  require(*gpu_, gpu_->events->take(device, flags, &event_), "cudaEventCreate");
}

GpuEvent::~GpuEvent() { gpu_->events->give_back(device_, flags_, event_); }

void GpuEvent::record(CudaStream stream) {
  require(*gpu_, gpu_->cuda.event_record(event_, stream), "cudaEventRecord");
}

// The default stream is that of the thread's device.
void GpuEvent::hold_up(CudaStream stream) const {
  const GpuDeviceGuard current(*gpu_, device_);
  require(*gpu_, gpu_->cuda.stream_wait(stream, event_, 0), "cudaStreamWaitEvent");
}

// Sets the device, or a thread that has none yet would make itself a context on the first one.
int GpuEvent::poll() const {
  const GpuDeviceGuard current(*gpu_, device_);
  const int status = query_quietly(gpu_->cuda, [&] { return gpu_->cuda.event_query(event_); });
  const bool captured = status >= kCudaCaptureErrors && status < kCudaCaptureErrorsEnd;
  return captured ? kCudaNotReady : status;
}

// True also after an error of the device, so that no wait lasts for ever.
bool GpuEvent::passed() const { return poll() != kCudaNotReady; }

std::chrono::nanoseconds GpuEvent::until(const DeviceMark& end) const {
  float milliseconds = 0;
  const CudaEvent last = static_cast<const GpuEvent&>(end).event_;
  const int status = query_quietly(
      gpu_->cuda, [&] { return gpu_->cuda.event_elapsed(&milliseconds, event_, last); });
  if (status != kCudaSuccess) return {};
  return std::chrono::nanoseconds(static_cast<std::int64_t>(milliseconds * 1e6F));
}

// Errors that the program has not yet read from CUDA stay there for it.
std::shared_ptr<const DeviceMark> ForeignStreams::mark(Stream stream) {
  const auto in = static_cast<CudaStream>(stream);
  if (is_captured(*gpu_, in)) return nullptr;
  std::shared_ptr<GpuEvent> event;
  query_quietly(gpu_->cuda, [&] {
    const GpuDeviceGuard current(*gpu_, device_);
    try {
      event = std::make_shared<GpuEvent>(gpu_, device_, kCudaEventDefault);
      event->record(in);
      return kCudaSuccess;
    } catch (const Error&) {
      event.reset();
      return kCudaNotReady;  // Any: there is none.
    }
  });
  return event;
}

}  // namespace ddprun::worker_sdk
