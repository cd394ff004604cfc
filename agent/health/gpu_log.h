#pragma once
// What the driver of NVIDIA's GPUs has written to the kernel's log since the workers were started:
// its Xid messages, of which some show a defect of the hardware and others a mistake of a program.
// Used by the agent for workers that failed with an error of CUDA or NCCL.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/worker_death.h"

namespace ddprun::agent {

struct Xid {
  int number = 0;
  int pid = 0;       // Of the process that used the GPU; 0: the line names none.
  std::string text;  // "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus."
};

// The message in a line of the kernel's log; absent: it has none.
std::optional<Xid> xid_in(std::string_view line);

// Whether that number shows that the GPU, its memory or its links are broken, by NVIDIA's table.
bool is_of_hardware(int xid);

// Of `death`, an error of CUDA or NCCL: judges it anew if `xid` shows more.
void add_xid(const Xid& xid, WorkerDeath& death);

class GpuLog {
 public:
  // `root` stands before every path: for tests.
  explicit GpuLog(std::string root = "") : root_(std::move(root)) {}

  // Workers are about to be started: what was logged before `microseconds` since the boot is not
  // about them.
  void begin(std::int64_t microseconds) { began_ = microseconds; }

  // Adds what the log has since then, if the death may have to do with a GPU.
  void add_to(WorkerDeath& death) const;

 private:
  std::string root_;
  std::int64_t began_ = 0;
};

}  // namespace ddprun::agent
