// An NVML of three cards for tests that have none, see DDPRUN_NVML_LIB: two in MIG mode with two
// slices each, and one that is whole.

#include <cstdio>

namespace {

struct Thing {
  const char* name;
  int card;
};
Thing cards[] = {{"GPU-0", 0}, {"GPU-1", 1}, {"GPU-2", 2}};
Thing slices[] = {{"MIG-0a", 0}, {"MIG-0b", 0}, {"MIG-1a", 1}, {"MIG-1b", 1}};

}  // namespace

extern "C" {

int nvmlInit_v2() { return 0; }
int nvmlShutdown() { return 0; }

int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 3;
  return 0;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = &cards[index];
  return 0;
}

int nvmlDeviceGetPciInfo_v3(void* device, char* info) {
  std::snprintf(info + 36, 32, "00000000:%dB:00.0", 1 + static_cast<Thing*>(device)->card);
  return 0;
}

int nvmlDeviceGetUUID(void* device, char* text, unsigned size) {
  std::snprintf(text, size, "%s", static_cast<Thing*>(device)->name);
  return 0;
}

int nvmlDeviceGetName(void*, char* text, unsigned size) {
  std::snprintf(text, size, "Fake H100");
  return 0;
}

int nvmlDeviceGetMigMode(void* device, unsigned* now, unsigned* after_reset) {
  *now = *after_reset = static_cast<Thing*>(device)->card < 2 ? 1 : 0;
  return 0;
}

int nvmlDeviceGetMaxMigDeviceCount(void*, unsigned* count) {
  *count = 7;
  return 0;
}

int nvmlDeviceGetMigDeviceHandleByIndex(void* device, unsigned index, void** slice) {
  if (index > 1) return 6;  // NVML_ERROR_NOT_FOUND.
  *slice = &slices[2 * static_cast<Thing*>(device)->card + static_cast<int>(index)];
  return 0;
}
}
