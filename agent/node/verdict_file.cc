#include "agent/node/verdict_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <ctime>
#include <filesystem>

#include "common/exit_status.h"
#include "common/system/log.h"
#include "common/system/unique_fd.h"
#include "rendezvous/run/verdict.h"

namespace ddprun::agent {
namespace {

Result<void> write_file(const std::string& path, std::string_view text) {
  const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file) return errno_failure("opening " + path);
  while (!text.empty()) {
    const ssize_t written = ::write(file.get(), text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return errno_failure("writing " + path);
    text.remove_prefix(static_cast<std::size_t>(written));
  }
  return {};
}

}  // namespace

Result<void> prepare_verdict_file(const std::string& path, const char* flag) {
  struct stat status {};
  if (::stat(path.c_str(), &status) == 0 && S_ISDIR(status.st_mode)) {
    return Failure{Errc::kBadOption, flag + (" " + path) + " is a folder"};
  }
  if (S_ISREG(status.st_mode)) ::unlink(path.c_str());
  std::string folder = std::filesystem::path(path).parent_path().string();
  if (folder.empty()) folder = ".";
  if (S_ISCHR(status.st_mode) || S_ISFIFO(status.st_mode)) return {};
  if (::access(folder.c_str(), W_OK | X_OK) != 0) {
    return errno_failure(flag + (" " + path) + " cannot be written: " + folder);
  }
  return {};
}

rendezvous::Verdict verdict_or(const std::optional<rendezvous::Verdict>& verdict, int status,
                               const std::string& complaint) {
  if (verdict) return *verdict;
  const bool never_met = status == kExitRendezvous || status == kExitNeverReady;
  return {.kind = never_met ? rendezvous::Verdict::Kind::kTimedOut
                            : rendezvous::Verdict::Kind::kInterrupted,
          .exit_code = status,
          .text = complaint};
}

void write_verdict_files(const std::vector<std::string>& paths, const rendezvous::Verdict& verdict,
                         const std::string& run_id) {
  const std::string text = rendezvous::verdict_json(verdict, run_id, std::time(nullptr));
  for (const std::string& path : paths) {
    const auto written = write_file(path, text);
    if (!written) log::warning("the verdict is not in its file: " + to_string(written.error()));
  }
}

}  // namespace ddprun::agent
