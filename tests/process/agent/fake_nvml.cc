// An NVML of two GPUs, one of which this container was not given, for tests that have none: see
// DDPRUN_NVML_LIB.

#include <cstdio>
#include <cstring>

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 3;
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  static int devices[3];
  *device = &devices[index];
  devices[index] = static_cast<int>(index);
  return index == 1 ? 4 : 0;  // NVML_ERROR_NO_PERMISSION.
}

int nvmlDeviceGetPciInfo_v3(void* device, char* info) {
  std::snprintf(info + 36, 32, "00000000:%dB:00.0", 1 + *static_cast<int*>(device));
  return 0;
}

int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  std::snprintf(text, size, "GPU-%d", *static_cast<int*>(device));
  return 0;
}

int nvmlDeviceGetName(void*, char* text, unsigned size) {
  std::snprintf(text, size, "Fake H100");
  return 0;
}
}
