#include "agent/placement/gpus.h"

#include <dlfcn.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <iterator>

#include "agent/placement/worker_environment.h"
#include "agent/process/proc_file.h"
#include "common/system/folder.h"
#include "common/system/own_process.h"

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

namespace {

namespace fs = std::filesystem;

struct NvmlPciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, pci_device_id, pci_sub_system_id;
  char bus_id[32];
};

bool is_in_mig_mode(const Nvml& nvml, Nvml::Device card) {
  const auto query = nvml.find<int (*)(Nvml::Device, unsigned*, unsigned*)>("nvmlDeviceGetMigMode");
  unsigned now = 0, after_reset = 0;
  return query && query(card, &now, &after_reset) == Nvml::kSuccess && now == 1;
}

// Those that this container is given. A card in MIG mode without any is useless.
std::vector<Nvml::Device> slices_of(const Nvml& nvml, Nvml::Device card) {
  const auto at = nvml.find<int (*)(Nvml::Device, unsigned, Nvml::Device*)>(
      "nvmlDeviceGetMigDeviceHandleByIndex");
  const auto most = nvml.query<unsigned>("nvmlDeviceGetMaxMigDeviceCount", card);
  std::vector<Nvml::Device> slices;
  for (unsigned i = 0; at && most && i < *most; ++i) {
    Nvml::Device slice = nullptr;
    if (at(card, i, &slice) == Nvml::kSuccess) slices.push_back(slice);
  }
  return slices;
}

std::vector<Gpu> gpus_of_nvml() {
  const Nvml nvml;
  std::vector<Gpu> found;
  int number = 0;
  for (const Nvml::Device card : nvml.devices()) {
    const auto pci = nvml.query<NvmlPciInfo>("nvmlDeviceGetPciInfo_v3", card);
    const bool sliced = is_in_mig_mode(nvml, card);
    const auto devices = sliced ? slices_of(nvml, card) : std::vector<Nvml::Device>{card};
    for (const Nvml::Device device : devices) {
      found.push_back({.bus_id = pci ? short_bus_id(pci->bus_id) : "",
                       .uuid = nvml.text("nvmlDeviceGetUUID", device),
                       .name = nvml.text("nvmlDeviceGetName", device),
                       .card = number,
                       .is_slice = sliced});
    }
    ++number;
  }
  return found;
}

bool is_gpu_device(const std::string& name) {
  return name.size() > 6 && name.starts_with("nvidia") &&
         std::all_of(name.begin() + 6, name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::vector<Gpu> gpus_of_files(const fs::path& root) {
  std::vector<Gpu> found;
  for (std::string& bus_id : names_in(root / "proc/driver/nvidia/gpus").names) {
    found.push_back({.bus_id = short_bus_id(std::move(bus_id))});
  }
  // In a container only the devices given to it exist, while /proc shows those of the host.
  std::size_t devices = 0;
  for (const std::string& name : names_in(root / "dev").names) devices += is_gpu_device(name);
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

std::vector<Gpu> visible_among(const std::vector<Gpu>& present,
                               const std::optional<std::string>& list) {
  if (!list) return present;
  std::vector<Gpu> seen;
  for (const std::string& entry : split_gpu_list(*list)) {
    const bool is_number = entry.find_first_not_of("0123456789") == std::string::npos;
    const auto is_meant = [&](const Gpu& gpu) {
      return is_number ? gpu.card == std::atoi(entry.c_str()) : gpu.uuid.starts_with(entry);
    };
    const auto first = std::find_if(present.begin(), present.end(), is_meant);
    if (is_number && first == present.end()) break;  // So does the driver.
    if (is_number) {
      std::copy_if(first, present.end(), std::back_inserter(seen), is_meant);
    } else if (first != present.end()) {
      seen.push_back(*first);
    } else {
      seen.push_back({.uuid = entry, .is_slice = entry.starts_with("MIG-")});
    }
  }
  return seen;
}

std::vector<Gpu> find_gpus(const std::string& root) {
  std::vector<Gpu> gpus;
  // A machine without the driver's control device has no GPU that could be queried.
  const bool driver = fs::exists(fs::path(root) / "dev/nvidiactl");
  if (root == "/" && (driver || std::getenv("DDPRUN_NVML_LIB"))) gpus = gpus_of_nvml();
  if (gpus.empty()) {
    gpus = gpus_of_files(root);
    for (std::size_t i = 0; i < gpus.size(); ++i) gpus[i].card = static_cast<int>(i);
  }
  for (Gpu& gpu : gpus) {
    if (gpu.bus_id.empty()) continue;
    const std::string node =
        read_proc_file(fs::path(root) / "sys/bus/pci/devices" / gpu.bus_id / "numa_node");
    if (!node.empty()) gpu.numa_node = std::atoi(node.c_str());
  }
  return gpus;
}

}  // namespace ddprun::agent
