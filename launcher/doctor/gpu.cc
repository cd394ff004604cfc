// GPUs: what NVML and the kernel's log say of them, without a CUDA context.

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <vector>

#include "agent/placement/gpus.h"
#include "agent/process/kernel_log.h"
#include "agent/process/proc_file.h"
#include "launcher/doctor/fact_names.h"
#include "launcher/doctor/probes.h"

namespace ddprun::doctor {
namespace {

namespace fs = std::filesystem;
using agent::Nvml;

constexpr unsigned kUncorrected = 1, kVolatile = 0;  // nvmlMemoryErrorType_t, nvmlEccCounterType_t.
constexpr unsigned kLinksMax = 18;                   // NVML_NVLINK_MAX_LINKS.
constexpr unsigned kHoldersMax = 64;

void set(Facts& facts, Whole fact, std::optional<unsigned> value) {
  if (value) facts.set(fact, std::int64_t{*value});
}

void ask_memory_cells(const Nvml& nvml, Nvml::Device device, Facts& gpu) {
  const auto errors = nvml.find<int (*)(Nvml::Device, unsigned, unsigned, unsigned long long*)>(
      "nvmlDeviceGetTotalEccErrors");
  unsigned long long count = 0;
  if (errors && errors(device, kUncorrected, kVolatile, &count) == Nvml::kSuccess) {
    gpu.set(fact::kGpuEcc, static_cast<std::int64_t>(count));
  }
  const auto rows = nvml.find<int (*)(Nvml::Device, unsigned*, unsigned*, unsigned*, unsigned*)>(
      "nvmlDeviceGetRemappedRows");
  unsigned corrected = 0, uncorrected = 0, pending = 0, failed = 0;
  if (rows && rows(device, &corrected, &uncorrected, &pending, &failed) == Nvml::kSuccess) {
    gpu.set(fact::kGpuRemap, std::int64_t{pending});
    gpu.set(fact::kGpuRemapFailed, std::int64_t{failed});
  }
}

void ask_clocks(const Nvml& nvml, Nvml::Device device, Facts& gpu) {
  const auto reasons =
      nvml.ask<unsigned long long>("nvmlDeviceGetCurrentClocksThrottleReasons", device);
  if (reasons) gpu.set(fact::kGpuThrottle, static_cast<std::int64_t>(*reasons));
  const auto celsius =
      nvml.find<int (*)(Nvml::Device, unsigned, unsigned*)>("nvmlDeviceGetTemperature");
  unsigned degrees = 0;
  if (celsius && celsius(device, 0, &degrees) == Nvml::kSuccess) {
    gpu.set(fact::kGpuCelsius, std::int64_t{degrees});
  }
}

void ask_wires(const Nvml& nvml, Nvml::Device device, Facts& gpu) {
  set(gpu, fact::kGpuWidth, nvml.ask<unsigned>("nvmlDeviceGetCurrPcieLinkWidth", device));
  set(gpu, fact::kGpuWidthMax, nvml.ask<unsigned>("nvmlDeviceGetMaxPcieLinkWidth", device));
  const auto state =
      nvml.find<int (*)(Nvml::Device, unsigned, unsigned*)>("nvmlDeviceGetNvLinkState");
  std::int64_t up = 0, down = 0;
  for (unsigned link = 0; state && link < kLinksMax; ++link) {
    unsigned active = 0;
    if (state(device, link, &active) != Nvml::kSuccess) continue;
    ++(active != 0 ? up : down);
  }
  gpu.set(fact::kGpuLinks, up);
  gpu.set(fact::kGpuLinksDown, down);
}

void ask_use(const Nvml& nvml, Nvml::Device device, Facts& gpu) {
  if (const auto memory = nvml.ask<Nvml::MemoryInfo>("nvmlDeviceGetMemoryInfo", device)) {
    gpu.set(fact::kGpuMemory, static_cast<std::int64_t>(memory->total));
    gpu.set(fact::kGpuMemoryUsed, static_cast<std::int64_t>(memory->used));
  }
  set(gpu, fact::kGpuMode, nvml.ask<unsigned>("nvmlDeviceGetComputeMode", device));
  const auto processes = nvml.find<int (*)(Nvml::Device, unsigned*, Nvml::ProcessInfo*)>(
      "nvmlDeviceGetComputeRunningProcesses_v3");
  std::vector<Nvml::ProcessInfo> found(kHoldersMax);
  unsigned count = kHoldersMax;
  if (!processes || processes(device, &count, found.data()) != Nvml::kSuccess) return;
  std::string holders;
  for (unsigned i = 0; i < std::min(count, kHoldersMax); ++i) {
    const int pid = static_cast<int>(found[i].pid);
    holders += (holders.empty() ? "pid " : ", pid ") + std::to_string(pid) + " (" +
               agent::read_proc_stat(pid).name + ")";
  }
  gpu.set(fact::kGpuHolders, holders);
  if (count > 0) gpu.set(fact::kGpuHolder, std::int64_t{found.front().pid});
}

Facts facts_of(const Nvml& nvml, Nvml::Device device) {
  Facts gpu;
  const std::string name = nvml.text("nvmlDeviceGetName", device);
  if (!name.empty()) gpu.set(fact::kGpuName, name);
  ask_memory_cells(nvml, device, gpu);
  ask_clocks(nvml, device, gpu);
  ask_wires(nvml, device, gpu);
  ask_use(nvml, device, gpu);
  return gpu;
}

void ask_nvml(Facts& facts) {
  const Nvml nvml;
  if (!nvml.is_there()) return;
  const auto driver = nvml.find<int (*)(char*, unsigned)>("nvmlSystemGetDriverVersion");
  char text[96] = {};
  if (driver && driver(text, sizeof text - 1) == Nvml::kSuccess) {
    facts.set(fact::kDriver, std::string(text));
  }
  for (const Nvml::Device device : nvml.devices()) facts.add(fact::kGpus, facts_of(nvml, device));
}

std::int64_t devices() {
  std::int64_t count = 0;
  std::error_code error;
  for (fs::directory_iterator entry("/dev", error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const bool numbered = name.starts_with("nvidia") && name.size() > 6 &&
                          name.find_first_not_of("0123456789", 6) == std::string::npos;
    count += numbered ? 1 : 0;
  }
  return count;
}

// Lines such as "NVRM: Xid (PCI:0000:3b:00): 79, pid=...", as far as the kernel still has them and
// lets us read them.
void find_xids(Facts& facts) {
  std::int64_t count = 0;
  agent::read_kernel_log("/dev/kmsg", [&](std::string_view line) {
    const std::size_t xid = line.find("NVRM: Xid");
    if (xid == std::string_view::npos) return true;
    ++count;
    facts.set(fact::kGpuXid, std::string(line.substr(xid)));
    return true;
  });
  facts.set(fact::kGpuXids, count);
}

}  // namespace

void probe_gpu(const ProbeRequest&, Facts& facts) {
  facts.set(fact::kGpuDevices, devices());
  ask_nvml(facts);
  if (!facts.list(fact::kGpus).empty()) find_xids(facts);
}

}  // namespace ddprun::doctor
