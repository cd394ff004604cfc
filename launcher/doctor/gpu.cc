// GPUs, as NVML and the kernel's log report them, without a CUDA context.

#include <algorithm>
#include <chrono>
#include <map>
#include <vector>

#include "agent/placement/gpus.h"
#include "agent/process/proc_file.h"
#include "common/system/folder.h"
#include "common/text/figures.h"
#include "launcher/doctor/subject.h"

namespace ddprun::doctor {

namespace fact {

constexpr Text kDriver{"gpu_driver"};
constexpr Whole kGpuDevices{"gpu_devices"};  // Files in /dev.
constexpr Whole kGpuXids{"gpu_xids"};        // Lines of the kernel's log.
constexpr Text kGpuXid{"gpu_xid"};           // The last of them.

// Of items of kGpus (subject.h).
constexpr Text kGpuName{"name"};
constexpr Whole kGpuEcc{"ecc_uncorrected"};
constexpr Whole kGpuRemap{"remap_pending"};
constexpr Whole kGpuRemapFailed{"remap_failed"};
constexpr Whole kGpuThrottle{"throttle"};  // NVML's bits.
constexpr Whole kGpuCelsius{"celsius"};
constexpr Whole kGpuWidth{"pcie_width"};
constexpr Whole kGpuWidthMax{"pcie_width_max"};
constexpr Whole kGpuLinks{"links_up"};
constexpr Whole kGpuLinksDown{"links_down"};
constexpr Whole kGpuMemory{"memory_bytes"};
constexpr Whole kGpuMemoryUsed{"memory_used_bytes"};
constexpr Whole kGpuMode{"compute_mode"};
constexpr Text kGpuHolders{"holders"};  // "pid 12 (python3)", separated by commas.
constexpr Whole kGpuHolder{"holder"};   // The first pid of them.

}  // namespace fact

namespace {

using namespace std::chrono_literals;
using agent::Nvml;

constexpr unsigned kUncorrected = 1, kVolatile = 0;  // nvmlMemoryErrorType_t, nvmlEccCounterType_t.
constexpr unsigned kLinksMax = 18;                   // NVML_NVLINK_MAX_LINKS.
constexpr unsigned kHoldersMax = 64;

void set(Facts& facts, Whole fact, std::optional<unsigned> value) {
  if (value) facts.set(fact, std::int64_t{*value});
}

void read_memory_cells(const Nvml& nvml, Nvml::Device device, Facts& gpu) {
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

void read_clocks(const Nvml& nvml, Nvml::Device device, Facts& gpu) {
  const auto reasons =
      nvml.query<unsigned long long>("nvmlDeviceGetCurrentClocksThrottleReasons", device);
  if (reasons) gpu.set(fact::kGpuThrottle, static_cast<std::int64_t>(*reasons));
  const auto celsius =
      nvml.find<int (*)(Nvml::Device, unsigned, unsigned*)>("nvmlDeviceGetTemperature");
  unsigned degrees = 0;
  if (celsius && celsius(device, 0, &degrees) == Nvml::kSuccess) {
    gpu.set(fact::kGpuCelsius, std::int64_t{degrees});
  }
}

void read_wires(const Nvml& nvml, Nvml::Device device, Facts& gpu) {
  set(gpu, fact::kGpuWidth, nvml.query<unsigned>("nvmlDeviceGetCurrPcieLinkWidth", device));
  set(gpu, fact::kGpuWidthMax, nvml.query<unsigned>("nvmlDeviceGetMaxPcieLinkWidth", device));
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

void read_use(const Nvml& nvml, Nvml::Device device, Facts& gpu) {
  if (const auto memory = nvml.query<Nvml::MemoryInfo>("nvmlDeviceGetMemoryInfo", device)) {
    gpu.set(fact::kGpuMemory, static_cast<std::int64_t>(memory->total));
    gpu.set(fact::kGpuMemoryUsed, static_cast<std::int64_t>(memory->used));
  }
  set(gpu, fact::kGpuMode, nvml.query<unsigned>("nvmlDeviceGetComputeMode", device));
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
  read_memory_cells(nvml, device, gpu);
  read_clocks(nvml, device, gpu);
  read_wires(nvml, device, gpu);
  read_use(nvml, device, gpu);
  return gpu;
}

void read_nvml(Facts& facts) {
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
  for (const std::string& name : names_in("/dev").names) {
    const bool numbered = name.starts_with("nvidia") && name.size() > 6 &&
                          name.find_first_not_of("0123456789", 6) == std::string::npos;
    count += numbered ? 1 : 0;
  }
  return count;
}

// Lines such as "NVRM: Xid (PCI:0000:3b:00): 79, pid=...", if the kernel still has them and we may
// read them.
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

void gather_gpu(const ProbeRequest&, Facts& facts) {
  facts.set(fact::kGpuDevices, devices());
  read_nvml(facts);
  if (!facts.list(fact::kGpus).empty()) find_xids(facts);
}

// nvmlClocksThrottleReasons of gpus.h.
constexpr std::int64_t kHardwareSlowdown = 0x8, kSoftwareThermal = 0x20, kHardwareThermal = 0x40,
                       kPowerBrake = 0x80;
constexpr std::int64_t kProhibited = 2;  // NVML_COMPUTEMODE_PROHIBITED.
constexpr std::int64_t kHotCelsius = 90;

std::int64_t whole(const Facts& gpu, Whole fact) { return gpu.get_or(fact, std::int64_t{0}); }

std::string leave_out(int index, std::size_t all) {
  std::string others;
  for (std::size_t i = 0; i < all; ++i) {
    if (static_cast<int>(i) == index) continue;
    others += (others.empty() ? "" : ",") + std::to_string(i);
  }
  return "CUDA_VISIBLE_DEVICES=" + others;
}

void judge_memory_cells(const Facts& gpu, const Finding& here, const std::string& without,
                        Findings& findings) {
  Finding finding = here;
  finding.status = Status::kFail;
  if (whole(gpu, fact::kGpuRemapFailed) > 0) {
    finding.value = "remapping of memory rows failed";
    finding.note = "replace the GPU; until then leave it out";
    finding.cure = without;
  } else if (whole(gpu, fact::kGpuRemap) > 0) {
    finding.value = "memory rows wait to be remapped";
    finding.note = "a reset does this, once no process uses the GPU";
    finding.cure = "nvidia-smi --gpu-reset";
  } else if (whole(gpu, fact::kGpuEcc) > 0) {
    finding.value = grouped(whole(gpu, fact::kGpuEcc)) + " uncorrected ECC errors";
    finding.note = "since the driver was loaded: results may be wrong";
    finding.cure = without;
  } else {
    return;
  }
  findings.push_back(finding);
}

void judge_clocks(const Facts& gpu, const Finding& here, Findings& findings) {
  const std::int64_t reasons = whole(gpu, fact::kGpuThrottle);
  const std::int64_t celsius = whole(gpu, fact::kGpuCelsius);
  Finding finding = here;
  finding.status = Status::kWarn;
  if (reasons & (kHardwareThermal | kSoftwareThermal)) {
    finding.value = "throttled, " + std::to_string(celsius) + " °C";
    finding.note = "all ranks wait for it; a fan, or the air?";
  } else if (reasons & (kPowerBrake | kHardwareSlowdown)) {
    finding.value = "throttled by the power supply";
    finding.note = "all ranks wait for it; a cable, or too little power?";
  } else if (celsius >= kHotCelsius) {
    finding.value = std::to_string(celsius) + " °C";
    finding.note = "about to be throttled";
  } else {
    return;
  }
  finding.cure = "nvidia-smi -q -d PERFORMANCE,TEMPERATURE";
  findings.push_back(finding);
}

void judge_wires(const Facts& gpu, const Finding& here, const std::string& without,
                 Findings& findings) {
  const std::int64_t width = whole(gpu, fact::kGpuWidth), most = whole(gpu, fact::kGpuWidthMax);
  Finding finding = here;
  finding.status = Status::kFail;
  finding.cure = without;
  if (width > 0 && width < most) {
    finding.value = "PCIe x" + std::to_string(width);
    finding.note = "x" + std::to_string(most) + " is what it could: reseat it, or leave it out";
    findings.push_back(finding);
  }
  const std::int64_t down = whole(gpu, fact::kGpuLinksDown);
  if (down > 0 && whole(gpu, fact::kGpuLinks) > 0) {
    finding.value = grouped(down) + " NVLinks down";
    finding.note = "of " + grouped(down + whole(gpu, fact::kGpuLinks));
    finding.cure = "nvidia-smi nvlink --status";
    findings.push_back(finding);
  }
}

void judge_use(const Facts& gpu, const Finding& here, const std::string& without,
               Findings& findings) {
  Finding finding = here;
  if (whole(gpu, fact::kGpuMode) == kProhibited) {
    finding.status = Status::kFail;
    finding.value = "compute mode: prohibited";
    finding.cure = "nvidia-smi --compute-mode=DEFAULT";
    findings.push_back(finding);
  }
  const std::string holders = gpu.text(fact::kGpuHolders);
  if (holders.empty()) return;
  finding.status = Status::kWarn;
  finding.value = "in use";
  finding.note = "by " + holders + ", which hold" +
                 (holders.find(',') == std::string::npos ? "s " : " ") +
                 bytes_text(whole(gpu, fact::kGpuMemoryUsed));
  finding.cure = whole(gpu, fact::kGpuHolder) > 0
                     ? "kill " + std::to_string(whole(gpu, fact::kGpuHolder))
                     : without;
  findings.push_back(finding);
}

// "8 × H100"; GPUs without a name count as `nameless`.
std::string kinds_of_gpus(const Facts& facts, const std::string& nameless) {
  std::map<std::string, int> counts;
  for (const Facts& gpu : facts.list(fact::kGpus)) ++counts[gpu.get_or(fact::kGpuName, nameless)];
  std::string kinds;
  for (const auto& [name, count] : counts) {
    kinds += (kinds.empty() ? "" : ", ") + std::to_string(count) + " × " + name;
  }
  return kinds;
}

Findings judge_gpus(const Facts& facts, const Need&) {
  const std::vector<Facts>& gpus = facts.list(fact::kGpus);
  const std::int64_t devices = whole(facts, fact::kGpuDevices);
  if (gpus.empty() && devices == 0) return {{.status = Status::kSkipped, .value = "none here"}};
  if (gpus.empty()) {
    return {{.status = Status::kFail,
             .value = grouped(devices) + " devices",
             .note = "NVML finds none of them: the driver and its library differ, or hang",
             .cure = "nvidia-smi"}};
  }
  Findings findings{{.value = kinds_of_gpus(facts, "GPU")}};
  const std::string driver = facts.text(fact::kDriver);
  if (!driver.empty()) findings.front().note = "driver " + driver;
  int index = 0;
  for (const Facts& gpu : gpus) {
    const Finding here{.name = "GPU " + std::to_string(index)};
    const std::string without = leave_out(index++, gpus.size());
    judge_memory_cells(gpu, here, without, findings);
    judge_clocks(gpu, here, findings);
    judge_wires(gpu, here, without, findings);
    judge_use(gpu, here, without, findings);
  }
  if (whole(facts, fact::kGpuXids) > 0) {
    findings.push_back({.name = "Xid",
                        .status = Status::kWarn,
                        .value = grouped(whole(facts, fact::kGpuXids)) + " in the kernel's log",
                        .note = facts.text(fact::kGpuXid),
                        .cure = "dmesg | grep NVRM"});
  }
  return findings;
}

Rows compare_drivers(const Nodes& nodes, const Need&) {
  return compare_equal(nodes, {.name = "GPU driver",
                               .fact = fact::kDriver,
                               .if_other = Status::kWarn,
                               .cure = "install one driver on all nodes"});
}

Rows compare_kinds(const Nodes& nodes, const Need&) {
  std::vector<std::string> values;
  bool any = false;
  for (const NodeFacts& node : nodes) {
    const bool has_none = node.facts.list(fact::kGpus).empty();
    any = any || !has_none;
    if (!node.error.empty())
      values.emplace_back();
    else
      values.push_back(has_none ? "none" : kinds_of_gpus(node.facts, ""));
  }
  if (!any) return {};
  Row row = row_of("GPUs of a kind", cells_of(values, Status::kWarn));
  if (row.finding.status != Status::kOk) row.finding.note = "all ranks wait for the slowest kind";
  return {row};
}

}  // namespace

Subject gpu_subject() {
  return {
      .group = Group::kGpu,
      .probe = Probe{"gpu", 15s, /*fast=*/true, /*alone=*/false, gather_gpu},
      .checks = {{"GPUs", judge_gpus}},
      .comparisons = {{Section::kDriver, compare_drivers}, {Section::kGpuKinds, compare_kinds}}};
}

}  // namespace ddprun::doctor
