#pragma once
// The report of NCCL's RAS subsystem about a job, read from its JSON (NCCL 2.28.7 and later), and
// as text for people. Pure. Used by `ddprunctl ras`.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace ddprun::launcher {

struct RasProcess {
  int rank = 0;  // In the communicator.
  std::string host;
  int pid = 0;
  int gpu = 0;  // NVML's index.
};

struct RasRank {
  RasProcess process;
  int init_state = 0, async_error = 0;  // ncclResult_t.
  bool finalizing = false, destroying = false, aborting = false;
  std::map<std::string, std::uint64_t> counts;  // Number of calls per operation so far.
};

struct RasMissing {
  RasProcess process;
  bool unresponsive = false;
  bool dead = false;
};

struct RasCommunicator {
  std::string hash;
  int size = 0;
  std::vector<RasRank> ranks;
  std::vector<RasMissing> missing;
};

struct RasReport {
  std::string nccl_version;
  int timeouts = 0;  // Processes that RAS waited for in vain.
  std::vector<RasCommunicator> communicators;
};

// NCCL up to 2.28.9 omits a comma if ranks are missing; this inserts it.
std::string repaired(std::string_view json);

Result<RasReport> decode_ras(std::string_view json);

// Per communicator: missing ranks, ranks with different numbers of operations, ranks with errors.
std::string ras_text(const RasReport& report);

}  // namespace ddprun::launcher
