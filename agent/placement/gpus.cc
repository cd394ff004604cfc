#include "agent/placement/gpus.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "agent/placement/nvml.h"
#include "agent/process/proc_file.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

struct NvmlPciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, pci_device_id, pci_sub_system_id;
  char bus_id[32];
};

std::vector<Gpu> gpus_of_nvml() {
  const Nvml nvml;
  std::vector<Gpu> found;
  for (const Nvml::Device device : nvml.devices()) {
    const auto pci = nvml.ask<NvmlPciInfo>("nvmlDeviceGetPciInfo_v3", device);
    found.push_back({.bus_id = pci ? short_bus_id(pci->bus_id) : "",
                     .uuid = nvml.text("nvmlDeviceGetUUID", device),
                     .name = nvml.text("nvmlDeviceGetName", device)});
  }
  return found;
}

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
  if (root == "/" && (driver || std::getenv("DDPRUN_NVML_LIB"))) gpus = gpus_of_nvml();
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
