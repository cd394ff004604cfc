#pragma once
// What is used of NVML, which is loaded at run time: the header is not needed for that, for its
// results are enums and its devices opaque pointers. Used by gpus.cc, and by gpu_probe.cc of the
// launcher.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ddprun::agent {

class Nvml {
 public:
  // nvmlMemory_t, and nvmlProcessInfo_t of versions 2 and 3, of nvml.h.
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

  // A function by name; null where this version has none.
  template <class Function>
  Function find(const char* name) const {
    return reinterpret_cast<Function>(symbol(name));
  }

  // Of "int name(device, T*)"; absent: it failed, or there is none.
  template <class T>
  std::optional<T> ask(const char* name, Device device) const {
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

}  // namespace ddprun::agent
