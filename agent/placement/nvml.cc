#include "agent/placement/nvml.h"

#include <dlfcn.h>

#include "common/system/variable.h"

namespace ddprun::agent {

Nvml::Nvml() {
  const std::string other = environment_variable("DDPRUN_NVML_LIB");
  library_ = ::dlopen(other.empty() ? "libnvidia-ml.so.1" : other.c_str(), RTLD_NOW | RTLD_LOCAL);
  const auto init = find<int (*)()>("nvmlInit_v2");
  started_ = init && init() == kSuccess;
}

Nvml::~Nvml() {
  const auto shutdown = find<int (*)()>("nvmlShutdown");
  if (started_ && shutdown) shutdown();
  if (library_) ::dlclose(library_);
}

std::vector<Nvml::Device> Nvml::devices() const {
  std::vector<Device> found;
  const auto count_devices = find<int (*)(unsigned*)>("nvmlDeviceGetCount_v2");
  const auto get = find<int (*)(unsigned, Device*)>("nvmlDeviceGetHandleByIndex_v2");
  unsigned count = 0;
  if (!started_ || !count_devices || !get || count_devices(&count) != kSuccess) return found;
  for (unsigned i = 0; i < count; ++i) {
    Device device = nullptr;
    if (get(i, &device) == kSuccess) found.push_back(device);
  }
  return found;
}

std::string Nvml::text(const char* name, Device device) const {
  const auto call = find<int (*)(Device, char*, unsigned)>(name);
  char buffer[96] = {};
  return call && call(device, buffer, sizeof buffer - 1) == kSuccess ? buffer : "";
}

void* Nvml::symbol(const char* name) const { return library_ ? ::dlsym(library_, name) : nullptr; }

}  // namespace ddprun::agent
