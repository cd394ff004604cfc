#pragma once
// What fake_nccl.cc needs of fake_cuda.cc beyond CUDA's own functions.

#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "worker_sdk/gpu/gpu_abi.h"

namespace ddprun::test {

// `work` is done by the stream's thread, after what was put there before.
void enqueue(worker_sdk::CudaStream stream, std::function<void()> work);

// As cudaStreamBeginCapture, cudaStreamEndCapture and cudaGraphLaunch, in the global mode.
struct Graph {
  std::vector<std::function<void()>> work;  // In an order that any stream may do it in.
  std::string complaints;                   // What would have ended the capture.
  void launch(worker_sdk::CudaStream stream) const {
    for (const auto& item : work) enqueue(stream, item);
  }
};
void begin_capture(worker_sdk::CudaStream stream);
Graph end_capture(worker_sdk::CudaStream stream);
bool is_captured(worker_sdk::CudaStream stream);

int current_device();       // Of the calling thread.
bool was_used(int device);  // Some thread has made it its current one.

// From now on every device has this error, as after an illegal access: 700. 0: none has.
void break_devices(int status);
// What the program has not asked for yet.
void leave_error(int status);
int left_error();

bool is_devices(const void* address);  // Memory of a device, not of the host.

// "b" for key "a" of an environment variable such as "a=b,c=d"; empty: not there.
inline std::string injected(const char* variable, const std::string& key) {
  const char* value = std::getenv(variable);
  const std::string text = "," + std::string(value ? value : "") + ",";
  const std::size_t at = text.find("," + key + "=");
  if (at == std::string::npos) return {};
  const std::size_t begin = at + key.size() + 2;
  return text.substr(begin, text.find(',', begin) - begin);
}

}  // namespace ddprun::test
