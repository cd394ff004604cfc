// An NVML of two GPUs of which GPU 1 is ill, for tests that have none: see DDPRUN_NVML_LIB. What
// FAKE_SICK_NVML names is wrong with it: ecc, remap, hot, brake, narrow, nvlink, prohibited, used;
// or "hang": nothing is ever answered; or "leave": all files are closed, and the process stays, as
// one that hangs in the driver while it exits.

#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace {

int devices[2] = {0, 1};

bool is(const char* illness) {
  const char* given = std::getenv("FAKE_SICK_NVML");
  return given && std::strcmp(given, illness) == 0;
}

bool has(const void* device, const char* illness) {
  return *static_cast<const int*>(device) == 1 && is(illness);
}

}  // namespace

extern "C" {

int nvmlInit_v2() {
  if (is("leave")) ::close_range(STDERR_FILENO + 1, ~0U, 0);
  while (is("hang") || is("leave")) ::poll(nullptr, 0, -1);
  return 0;
}
int nvmlShutdown() { return 0; }

int nvmlSystemGetDriverVersion(char* text, unsigned size) {
  std::snprintf(text, size, "580.65");
  return 0;
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 2;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &devices[index];
  return 0;
}
int nvmlDeviceGetName(void*, char* text, unsigned size) {
  std::snprintf(text, size, "Fake H100");
  return 0;
}
int nvmlDeviceGetTotalEccErrors(void* device, unsigned, unsigned, unsigned long long* count) {
  *count = has(device, "ecc") ? 3 : 0;
  return 0;
}
int nvmlDeviceGetRemappedRows(void* device, unsigned* a, unsigned* b, unsigned* pending,
                              unsigned* failed) {
  *a = *b = *failed = 0;
  *pending = has(device, "remap") ? 1 : 0;
  return 0;
}
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
  *reasons = has(device, "hot") ? 0x40 : has(device, "brake") ? 0x80 : 0x1;
  return 0;
}
int nvmlDeviceGetTemperature(void* device, unsigned, unsigned* celsius) {
  *celsius = has(device, "hot") ? 89 : 41;
  return 0;
}
int nvmlDeviceGetCurrPcieLinkWidth(void* device, unsigned* width) {
  *width = has(device, "narrow") ? 8 : 16;
  return 0;
}
int nvmlDeviceGetMaxPcieLinkWidth(void*, unsigned* width) {
  *width = 16;
  return 0;
}
int nvmlDeviceGetNvLinkState(void* device, unsigned link, unsigned* active) {
  *active = link == 3 && has(device, "nvlink") ? 0 : 1;
  return link < 18 ? 0 : 2;
}
int nvmlDeviceGetComputeMode(void* device, unsigned* mode) {
  *mode = has(device, "prohibited") ? 2 : 0;
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* total_free_used) {
  total_free_used[0] = 79'100ULL * 1024 * 1024 * 1024 / 1000;
  total_free_used[1] = total_free_used[0] / 2;
  total_free_used[2] = total_free_used[0] / 2;
  return 0;
}
int nvmlDeviceGetComputeRunningProcesses_v3(void* device, unsigned* count, void* list) {
  struct Process {
    unsigned pid;
    unsigned long long used;
    unsigned gpu_instance, compute_instance;
  };
  *count = has(device, "used") ? 1 : 0;
  const Process process{static_cast<unsigned>(::getpid()), 14'500ULL * 1024 * 1024 * 1024 / 1000, 0,
                        0};
  if (*count > 0) std::memcpy(list, &process, sizeof process);
  return 0;
}
}
