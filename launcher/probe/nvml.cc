#include "launcher/probe/nvml.h"

#include <dlfcn.h>

#include <cstdlib>

namespace ddprun::doctor {

Nvml::Nvml() {
  const char* other = std::getenv("DDPRUN_NVML_LIB");
  library_ = ::dlopen(other && *other ? other : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  const auto init = find<int (*)()>("nvmlInit_v2");
  started_ = init && init() == kSuccess;
}

Nvml::~Nvml() {
  const auto shutdown = find<int (*)()>("nvmlShutdown");
  if (started_ && shutdown) shutdown();
  if (library_) ::dlclose(library_);
}

void* Nvml::symbol(const char* name) const { return library_ ? ::dlsym(library_, name) : nullptr; }

}  // namespace ddprun::doctor
