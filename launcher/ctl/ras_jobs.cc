// Part of ras_query.h: the RAS addresses of the jobs of this machine, from their workers'
// environment.

#include <algorithm>
#include <filesystem>
#include <system_error>
#include <tuple>

#include "launcher/ctl/ras_query.h"
#include "launcher/watch/stacks.h"

namespace ddprun::launcher {
namespace {

bool is_number(const std::string& name) {
  return !name.empty() &&
         std::all_of(name.begin(), name.end(), [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

std::vector<RasJob> ras_jobs(const std::string& run_id, const std::string& proc) {
  std::vector<RasJob> jobs;
  std::error_code error;
  for (std::filesystem::directory_iterator at(proc, error), end; !error && at != end;
       at.increment(error)) {
    if (!is_number(at->path().filename())) continue;
    RasJob job{started_with(at->path(), "TORCHELASTIC_RUN_ID"),
               started_with(at->path(), "NCCL_RAS_ADDR")};
    const bool wanted = run_id.empty() || job.run_id == run_id;
    if (job.run_id.empty() || job.address.empty() || !wanted) continue;
    if (std::find(jobs.begin(), jobs.end(), job) == jobs.end()) jobs.push_back(std::move(job));
  }
  std::sort(jobs.begin(), jobs.end(), [](const RasJob& a, const RasJob& b) {
    return std::tie(a.run_id, a.address) < std::tie(b.run_id, b.address);
  });
  return jobs;
}

}  // namespace ddprun::launcher
