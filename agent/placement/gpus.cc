#include "agent/placement/gpus.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "agent/process/proc_file.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

// What is used of NVML, whose header is not needed for that: nvmlReturn_t is an enum, a device an
// opaque pointer.
constexpr int kNvmlSuccess = 0;
using NvmlDevice = struct NvmlDeviceState*;
struct NvmlPciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, pci_device_id, pci_sub_system_id;
  char bus_id[32];
};

class Nvml {
 public:
  Nvml() {
    const char* other = std::getenv("DDPRUN_NVML_LIB");
    library_ = ::dlopen(other && *other ? other : "libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    using Call = int (*)();
    const Call init = find<Call>("nvmlInit_v2");
    started_ = init && init() == kNvmlSuccess;
  }
  ~Nvml() {
    const auto shutdown = find<int (*)()>("nvmlShutdown");
    if (started_ && shutdown) shutdown();
    if (library_) ::dlclose(library_);
  }
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  std::vector<Gpu> gpus() const {
    std::vector<Gpu> found;
    const auto get_count = find<int (*)(unsigned*)>("nvmlDeviceGetCount_v2");
    const auto get_device = find<int (*)(unsigned, NvmlDevice*)>("nvmlDeviceGetHandleByIndex_v2");
    const auto get_pci = find<int (*)(NvmlDevice, NvmlPciInfo*)>("nvmlDeviceGetPciInfo_v3");
    const auto get_uuid = find<TextCall>("nvmlDeviceGetUUID");
    const auto get_name = find<TextCall>("nvmlDeviceGetName");
    unsigned count = 0;
    if (!started_ || !get_count || !get_device || get_count(&count) != kNvmlSuccess) return found;
    for (unsigned i = 0; i < count; ++i) {
      NvmlDevice device = nullptr;
      if (get_device(i, &device) != kNvmlSuccess) continue;  // Not given to this container.
      Gpu gpu;
      NvmlPciInfo pci{};
      if (get_pci && get_pci(device, &pci) == kNvmlSuccess) gpu.bus_id = short_bus_id(pci.bus_id);
      gpu.uuid = text(get_uuid, device);
      gpu.name = text(get_name, device);
      found.push_back(std::move(gpu));
    }
    return found;
  }

 private:
  using TextCall = int (*)(NvmlDevice, char*, unsigned);

  template <class Function>
  Function find(const char* name) const {
    return library_ ? reinterpret_cast<Function>(::dlsym(library_, name)) : nullptr;
  }

  static std::string text(TextCall call, NvmlDevice device) {
    char buffer[96] = {};
    const bool told = call && call(device, buffer, sizeof buffer - 1) == kNvmlSuccess;
    return told ? std::string(buffer) : std::string();
  }

  void* library_ = nullptr;
  bool started_ = false;
};

std::vector<std::string> entries(const fs::path& folder) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end;
       entry.increment(error)) {
    names.push_back(entry->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

bool is_gpu_device(const std::string& name) {
  return name.size() > 6 && name.starts_with("nvidia") &&
         std::all_of(name.begin() + 6, name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<Gpu> gpus_of_files(const fs::path& root) {
  std::vector<Gpu> found;
  for (std::string& bus_id : entries(root / "proc/driver/nvidia/gpus")) {
    found.push_back({short_bus_id(std::move(bus_id)), {}, {}, -1});
  }
  // In a container only the devices given to it exist, while /proc shows those of the host.
  std::size_t devices = 0;
  for (const std::string& name : entries(root / "dev")) devices += is_gpu_device(name);
  if (found.empty() || (devices > 0 && devices < found.size())) found.assign(devices, Gpu{});
  return found;
}

}  // namespace

std::string short_bus_id(std::string bus_id) {
  std::transform(bus_id.begin(), bus_id.end(), bus_id.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  const std::size_t colon = bus_id.find(':');
  return colon != std::string::npos && colon > 4 ? bus_id.substr(colon - 4) : bus_id;
}

std::vector<Gpu> find_gpus(const std::string& root) {
  std::vector<Gpu> gpus;
  // A machine without the driver's control device has no GPU that could be asked.
  const bool driver = fs::exists(fs::path(root) / "dev/nvidiactl");
  if (root == "/" && (driver || std::getenv("DDPRUN_NVML_LIB"))) gpus = Nvml().gpus();
  if (gpus.empty()) gpus = gpus_of_files(root);
  for (Gpu& gpu : gpus) {
    if (gpu.bus_id.empty()) continue;
    const std::string node =
        read_proc_file(fs::path(root) / "sys/bus/pci/devices" / gpu.bus_id / "numa_node");
    if (!node.empty()) gpu.numa_node = std::atoi(node.c_str());
  }
  return gpus;
}

}  // namespace ddprun::agent
