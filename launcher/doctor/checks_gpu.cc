// GPUs, as NVML reports them.

#include <map>

#include "launcher/doctor/checks.h"
#include "launcher/doctor/fact_names.h"
#include "launcher/doctor/finding.h"

namespace ddprun::doctor {
namespace {

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
    finding.value = count_text(whole(gpu, fact::kGpuEcc)) + " uncorrected ECC errors";
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
    finding.value = count_text(down) + " NVLinks down";
    finding.note = "of " + count_text(down + whole(gpu, fact::kGpuLinks));
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
  const std::string holders = gpu.get_or(fact::kGpuHolders, std::string());
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

std::string kinds(const std::vector<Facts>& gpus) {
  std::map<std::string, int> counts;
  for (const Facts& gpu : gpus) ++counts[gpu.get_or(fact::kGpuName, std::string("GPU"))];
  std::string text;
  for (const auto& [name, count] : counts) {
    text += (text.empty() ? "" : ", ") + std::to_string(count) + " × " + name;
  }
  return text;
}

}  // namespace

Findings judge_gpus(const Facts& facts, const Need&) {
  const std::vector<Facts>& gpus = facts.list(fact::kGpus);
  const std::int64_t devices = whole(facts, fact::kGpuDevices);
  if (gpus.empty() && devices == 0) return {{.status = Status::kSkipped, .value = "none here"}};
  if (gpus.empty()) {
    return {{.status = Status::kFail,
             .value = count_text(devices) + " devices",
             .note = "NVML finds none of them: the driver and its library differ, or hang",
             .cure = "nvidia-smi"}};
  }
  Findings findings{{.value = kinds(gpus)}};
  const std::string driver = facts.get_or(fact::kDriver, std::string());
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
                        .value = count_text(whole(facts, fact::kGpuXids)) + " in the kernel's log",
                        .note = facts.get_or(fact::kGpuXid, std::string()),
                        .cure = "dmesg | grep NVRM"});
  }
  return findings;
}

}  // namespace ddprun::doctor
