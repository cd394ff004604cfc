#include "agent/health/gpu_log.h"

#include <algorithm>
#include <array>
#include <charconv>

#include "agent/process/kernel_log.h"
#include "common/text/display.h"

namespace ddprun::agent {
namespace {

// The number behind `word`; -1: there is none.
std::int64_t number_after(std::string_view text, std::string_view word) {
  std::size_t at = text.find(word);
  if (at == std::string_view::npos) return -1;
  at = text.find_first_not_of(" '\"", at + word.size());
  std::int64_t number = -1;
  if (at != std::string_view::npos) {
    std::from_chars(text.data() + at, text.data() + text.size(), number);
  }
  return number;
}

bool may_be_of_gpu(const WorkerDeath& death) {
  switch (death.fault) {
    case Fault::kGpuAssert:
    case Fault::kGpuAccess:
    case Fault::kGpuBroken:
    case Fault::kNoGpu:
    case Fault::kNccl: return true;
    case Fault::kException:
    case Fault::kCrash: return death.detail.find("CUDA") != std::string::npos;
    default: return false;
  }
}

}  // namespace

std::optional<Xid> xid_in(std::string_view line) {
  constexpr std::string_view kWord = "NVRM: Xid";
  const std::size_t begin = line.find(kWord);
  if (begin == std::string_view::npos) return std::nullopt;
  const std::string_view text = line.substr(begin);
  const std::int64_t number = number_after(text, "): ");
  if (number <= 0) return std::nullopt;
  return Xid{.number = static_cast<int>(number),
             .pid = static_cast<int>(std::max<std::int64_t>(0, number_after(text, "pid="))),
             .text = without_escapes(std::string(text.substr(0, 240)))};
}

// ECC errors that could not be corrected (48, 94, 95, 140), rows that cannot be remapped (64),
// NVLink (74), a GPU off the bus (79), high rates of corrected errors (92), firmware that does not
// answer (119, 120), chip-to-chip links (121), and a GPU that must be reset (143, 154).
bool is_of_hardware(int xid) {
  constexpr std::array kNumbers = {48, 64, 74, 79, 92, 94, 95, 119, 120, 121, 140, 143, 154};
  return std::find(kNumbers.begin(), kNumbers.end(), xid) != kNumbers.end();
}

void add_xid(const Xid& xid, WorkerDeath& death) {
  if (!is_of_hardware(xid.number) && (xid.pid == 0 || xid.pid != death.pid)) return;
  if (is_of_hardware(xid.number)) death.fault = Fault::kGpuBroken;
  death.evidence = "kernel log: " + xid.text;
}

void GpuLog::add_to(WorkerDeath& death) const {
  if (!may_be_of_gpu(death)) return;
  std::optional<Xid> best;
  read_kernel_log(root_ + "/dev/kmsg", [&](std::string_view line) {
    const auto xid = xid_in(line);
    const auto time = kernel_log_time(line);
    if (!xid || !time || *time < began_) return true;
    const bool better =
        !best || (is_of_hardware(xid->number) && !is_of_hardware(best->number)) ||
        (xid->pid == death.pid && best->pid != death.pid && !is_of_hardware(best->number));
    if (better) best = xid;
    return true;
  });
  if (best) add_xid(*best, death);
}

}  // namespace ddprun::agent
