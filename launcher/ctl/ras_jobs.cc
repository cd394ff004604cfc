// Of ras_ask.h: where the jobs of this machine have their RAS, as their workers' environment says.

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string_view>
#include <system_error>
#include <tuple>

#include "launcher/ctl/ras_ask.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kEnvironmentMax = std::size_t{4} << 20;

// Nothing where it may not be read.
std::string environment_of(const std::filesystem::path& process) {
  std::ifstream in(process / "environ", std::ios::binary);
  std::string text(kEnvironmentMax, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(in.gcount()));
  return text;
}

// Of "NAME=value" entries with a zero byte behind each.
std::string value_of(std::string_view environment, std::string_view name) {
  while (!environment.empty()) {
    const std::string_view entry = environment.substr(0, environment.find('\0'));
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=') {
      return std::string(entry.substr(name.size() + 1));
    }
    environment.remove_prefix(std::min(entry.size() + 1, environment.size()));
  }
  return {};
}

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
    const std::string environment = environment_of(at->path());
    RasJob job{value_of(environment, "TORCHELASTIC_RUN_ID"),
               value_of(environment, "NCCL_RAS_ADDR")};
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
