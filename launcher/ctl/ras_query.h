#pragma once
// Queries NCCL's RAS subsystem, which listens in every process of a job at NCCL_RAS_ADDR, and finds
// that address. Blocks, within a limit. Called by ctl_main.cc.

#include <string>
#include <vector>

#include "common/error.h"
#include "common/time.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

// A job with workers on this machine and an environment that we may read.
struct RasJob {
  std::string run_id;
  std::string address;  // "localhost:21234"

  bool operator==(const RasJob&) const = default;
};

// The jobs of all processes that have TORCHELASTIC_RUN_ID and NCCL_RAS_ADDR in their environment,
// each once. `run_id`: of this run only, if not empty.
std::vector<RasJob> ras_jobs(const std::string& run_id, const std::string& proc = "/proc");

struct RasAnswer {
  bool is_json = false;  // NCCL before 2.28.7 has text only.
  std::string text;
};

Result<RasAnswer> query_ras(const Endpoint& endpoint, Milliseconds limit);

}  // namespace ddprun::launcher
