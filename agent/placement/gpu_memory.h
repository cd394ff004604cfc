#pragma once
// Which processes hold the memory of the GPUs of this machine, by NVML: the evidence for a worker
// to which CUDA refused memory. NVML may hang if a GPU is broken. So a child process calls it,
// which is killed when its time is over. Used by Agent.

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/system/child_process.h"
#include "common/time.h"

namespace ddprun::agent {

struct GpuUser {
  int pid = 0;
  std::uint64_t bytes = 0;  // 0: the driver does not report it.
  std::string name = {};    // Of the process; empty: it cannot be seen from here.
};
struct GpuMemory {
  std::uint64_t total = 0;
  std::vector<GpuUser> users = {};
};

// By NVML's index. Empty without NVML.
std::vector<GpuMemory> memory_of_gpus();

// The GPU of PyTorch's message, "GPU 3 has a total capacity of" or "(GPU 3; 10.92 GiB total
// capacity"; -1: `words` name none.
int gpu_in(std::string_view words);

// NVML's index of the GPU that a process with this CUDA_VISIBLE_DEVICES calls `ordinal`, if that is
// a list of numbers or empty; else -1.
int gpu_at(int ordinal, std::string_view visible);

// A half sentence about `gpu`, or about all of them for -1: what other processes hold, the ranks of
// this node by their number. `pid`: the process that was refused memory. Empty: nothing is known.
struct GpuQuestion {
  int gpu = -1;
  int pid = 0;
  std::map<int, int> ranks = {};  // By pid.
};
std::string holders_text(const std::vector<GpuMemory>& gpus, const GpuQuestion& question);

// Whether a query may find anything.
bool has_nvml();

// memory_of_gpus() and holders_text() in a child process.
class GpuInquiry {
 public:
  using Done = std::function<void(std::string)>;
  // `done` is called from the loop, once, at most `limit` from now; never once this object is gone.
  GpuInquiry(boost::asio::io_context& loop, const GpuQuestion& question, Duration limit, Done done);
  ~GpuInquiry();
  GpuInquiry(const GpuInquiry&) = delete;
  GpuInquiry& operator=(const GpuInquiry&) = delete;

 private:
  void read_more();
  void end_child(Milliseconds limit);
  void finish();

  boost::asio::posix::stream_descriptor answer_;
  boost::asio::steady_timer limit_;
  Done done_;
  ChildProcess child_;
  std::array<char, 1024> part_{};
  std::string text_;
};

}  // namespace ddprun::agent
