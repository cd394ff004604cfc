#include "agent/output/log_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "common/assert.h"
#include "common/system/user_file.h"
#include "common/system/variable.h"

namespace ddprun::agent {
namespace {

namespace fs = std::filesystem;

// A run id is the user's: it must not lead out of the folder.
std::string file_name_of(std::string run_id) {
  std::replace(run_id.begin(), run_id.end(), '/', '_');
  return run_id.empty() || run_id.front() == '.' ? "run" + run_id : run_id;
}

Result<std::string> make_unique_folder(const std::string& stem) {
  std::string path = stem + "_XXXXXX";
  if (!::mkdtemp(path.data())) return errno_failure("making the log folder " + path);
  return path;
}

Result<std::string> make_temporary_folder() {
  const std::string temporary = environment_variable("TMPDIR");
  const std::string wished = temporary.empty() ? "/tmp" : temporary;
  Result<std::string> made = make_unique_folder(wished + "/ddprun");
  return made || wished == "/tmp" ? made : make_unique_folder("/tmp/ddprun");
}

}  // namespace

LogFolder LogFolder::for_error_files(std::string folder, std::string stem) {
  DDPRUN_ASSERT(!folder.empty() && !stem.empty());
  LogFolder logs;
  logs.folder_ = std::move(folder);
  logs.stem_ = std::move(stem);
  return logs;
}

Result<LogFolder> LogFolder::create(const std::string& log_dir, const std::string& run_id) {
  LogFolder logs;
  if (log_dir == "/dev/null") return logs;
  std::string base = log_dir;
  if (base.empty()) {
    Result<std::string> made = make_temporary_folder();
    if (made.has_error()) return made.error();
    base = std::move(*made);
  }
  std::error_code error;
  base = fs::absolute(base, error).string();
  fs::create_directories(base, error);
  if (error) return Failure{error, "making the log folder " + base};
  Result<std::string> folder = make_unique_folder(base + "/" + file_name_of(run_id));
  if (folder.has_error()) return folder.error();
  logs.folder_ = std::move(*folder);
  return logs;
}

std::string LogFolder::worker_folder(int restart_count, int local_rank) const {
  return attempt_folder(restart_count) + "/" + std::to_string(local_rank);
}

std::string LogFolder::attempt_folder(int restart_count) const {
  return folder_ + "/attempt_" + std::to_string(restart_count);
}

Result<std::string> LogFolder::make_worker_folder(int restart_count, int local_rank) const {
  ::unlink(error_file(restart_count, local_rank).c_str());
  if (!stem_.empty()) return folder_;
  std::string path = worker_folder(restart_count, local_rank);
  std::error_code error;
  fs::create_directories(path, error);
  if (error) return Failure{error, "making the log folder " + path};
  return path;
}

std::string LogFolder::error_file(int restart_count, int local_rank) const {
  if (!enabled()) return "";
  if (stem_.empty()) return worker_folder(restart_count, local_rank) + "/error.json";
  return folder_ + "/" + stem_ + std::to_string(restart_count) + "_" + std::to_string(local_rank) +
         ".json";
}

std::string LogFolder::dump_file(int restart_count, int local_rank) const {
  if (!enabled() || !stem_.empty()) return "";
  return worker_folder(restart_count, local_rank) + "/flight_recorder.json";
}

std::string read_file_end(const std::string& path, std::size_t bytes_max) {
  return read_regular_end(path, bytes_max).value_or("");
}

}  // namespace ddprun::agent
