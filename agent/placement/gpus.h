#pragma once
// The NVIDIA GPUs of this machine, or the slices of those that are in MIG mode, without a CUDA
// context: by NVML, loaded at run time, else by /proc/driver/nvidia, else by the devices in /dev.
// Called by placement.

#include <optional>
#include <string>
#include <vector>

namespace ddprun::agent {

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

// In the order of their bus ids, which is nvidia-smi's. `root` is where /proc, /dev and /sys are
// looked for; NVML is asked only for "/". DDPRUN_NVML_LIB names another library than
// libnvidia-ml.so.1.
std::vector<Gpu> find_gpus(const std::string& root = "/");

// "00000000:3B:00.0" of NVML -> "0000:3b:00.0".
std::string short_bus_id(std::string bus_id);

}  // namespace ddprun::agent
