#pragma once
// The NVIDIA GPUs of this machine, or the slices of those that are in MIG mode, without a CUDA
// context: by NVML, loaded at run time, else by /proc/driver/nvidia, else by the devices in /dev.
// Called by placement.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::agent {

// What is used of NVML, which is loaded at run time: the header is not needed for that, for its
// results are enums and its devices opaque pointers. Used by gpus.cc and by the doctor.
class Nvml {
 public:
  // nvmlMemory_t, and nvmlProcessInfo_t of versions 2 and 3, of gpus.h.
  struct MemoryInfo {
    unsigned long long total, free, used;
  };
  struct ProcessInfo {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
  };

  using Device = struct DeviceState*;
  static constexpr int kSuccess = 0;

  Nvml();  // DDPRUN_NVML_LIB names another library than libnvidia-ml.so.1.
  ~Nvml();
  Nvml(const Nvml&) = delete;
  Nvml& operator=(const Nvml&) = delete;

  bool is_there() const { return started_; }
  std::vector<Device> devices() const;  // Those that this container is given; none without NVML.

  // A function by name; null if this version has none.
  template <class Function>
  Function find(const char* name) const {
    return reinterpret_cast<Function>(symbol(name));
  }

  // Of "int name(device, T*)"; absent: it failed, or there is none.
  template <class T>
  std::optional<T> query(const char* name, Device device) const {
    const auto call = find<int (*)(Device, T*)>(name);
    T value{};
    return call && call(device, &value) == kSuccess ? std::optional<T>(value) : std::nullopt;
  }

  // Of "int name(device, char*, unsigned)"; empty: it failed, or there is none.
  std::string text(const char* name, Device device) const;

 private:
  void* symbol(const char* name) const;

  void* library_ = nullptr;
  bool started_ = false;
};

struct Gpu {
  std::string bus_id;     // "0000:3b:00.0", as in /sys/bus/pci/devices; empty: unknown.
  std::string uuid;       // "GPU-...", of a slice "MIG-...", or empty.
  std::string name;       // "NVIDIA H100", or empty.
  int numa_node = -1;     // -1: unknown, or the machine has only one.
  int card = -1;          // Its place among the cards; several slices have the same.
  bool is_slice = false;  // Of MIG. CUDA lets a process use one of those that it sees.
};

// What CUDA_VISIBLE_DEVICES leaves of `present`: a number is a card with all of its slices, a name
// that is not known stands for itself. Absent: all.
std::vector<Gpu> visible_among(const std::vector<Gpu>& present,
                               const std::optional<std::string>& list);

// In the order of their bus ids, which is nvidia-smi's. /proc, /dev and /sys are read below `root`;
// NVML is queried only for "/". DDPRUN_NVML_LIB names another library than libnvidia-ml.so.1.
std::vector<Gpu> find_gpus(const std::string& root = "/");

// "00000000:3B:00.0" of NVML -> "0000:3b:00.0".
std::string short_bus_id(std::string bus_id);

}  // namespace ddprun::agent
