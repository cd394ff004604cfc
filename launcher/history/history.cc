#include "launcher/history/history.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <memory>
#include <string_view>

#include "agent/process/proc_file.h"
#include "common/system/folder.h"
#include "common/system/log.h"
#include "common/system/own_process.h"
#include "common/system/secrets.h"

namespace ddprun::launcher {
namespace {

// In the run's temporary folder, while the run lives, if there is no other place for its record.
constexpr const char* kLiveRecord = "run.json";
constexpr double kShortRun = 10;  // Seconds. The end of a shorter run does not wait for a disk.

// Several machines may share a home.
std::string own_host() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  std::string name = host.data();
  std::replace(name.begin(), name.end(), '/', '_');
  return name.empty() || name.front() == '.' ? "localhost" : name;
}

// The temporary folders of this user's runs (launcher/guard/scratch.h).
std::vector<std::string> own_run_folders() {
  std::vector<std::string> folders;
  std::vector<std::string> bases = {"/tmp"};
  const std::string other = environment_variable("TMPDIR");
  if (!other.empty() && other != bases.front()) bases.push_back(other);
  for (const std::string& base : bases) {
    for (const std::string& name : names_in(base).names) {
      const std::string path = base + "/" + name;
      struct stat status {};
      if (!name.starts_with(kRunFolderPrefix)) continue;
      if (::lstat(path.c_str(), &status) != 0 || !S_ISDIR(status.st_mode)) continue;
      if (status.st_uid == ::geteuid() && (status.st_mode & 077) == 0) folders.push_back(path);
    }
  }
  return folders;
}

}  // namespace

bool keeps_history() { return environment_variable(kHistoryVariable) != "0"; }

std::optional<RecordFolder> history_folder() {
  if (!keeps_history()) return std::nullopt;
  std::string base = environment_variable("XDG_STATE_HOME");
  if (!base.starts_with('/')) {
    const std::string home = environment_variable("HOME");
    // A missing home is not created: it may be mistyped, or that of a service user.
    struct stat status {};
    if (!home.starts_with('/') || ::stat(home.c_str(), &status) != 0) return std::nullopt;
    base = home + "/.local/state";
  }
  return RecordFolder(base + "/ddprun/history/" + own_host());
}

LauncherLife own_life() {
  return {::getpid(), agent::read_proc_stat(::getpid()).started, boot_id()};
}

KeptRun KeptRun::begin(RunRecord record) {
  KeptRun run;
  run.folder_ = history_folder();
  run.name_ = record_name();
  run.record_ = std::move(record);
  run.put(RecordFolder::Safety::kProcess);
  if (run.folder_) {
    run.folder_->make_room(run.name_);
  } else if (keeps_history() && !run.record_.folder.empty()) {
    // In a container the home is often missing or read-only: the run can be watched all the same.
    const std::string text = encode_within(run.record_, RecordFolder::Limits().record_bytes);
    const auto kept =
        RecordFolder(run.record_.folder).put(kLiveRecord, text, RecordFolder::Safety::kProcess);
    if (!kept) log::debug("ddprunctl will not find this run: " + to_string(kept.error()));
  }
  return run;
}

void KeptRun::stopping(std::string verdict) {
  if (!record_.verdict.empty()) return;
  record_.verdict = std::move(verdict);
  put(RecordFolder::Safety::kProcess);
}

void KeptRun::end(double took_s) {
  record_.took_s = took_s;
  record_.folder.clear();
  using Safety = RecordFolder::Safety;
  put(took_s < kShortRun ? Safety::kProcess : Safety::kMachine);
}

void KeptRun::put(RecordFolder::Safety safety) {
  if (!folder_) return;
  const std::string text = encode_within(record_, RecordFolder::Limits().record_bytes);
  const auto kept = folder_->put(name_, text, safety);
  if (kept) return;
  log::debug("the history has no record of this run: " + to_string(kept.error()));
  folder_.reset();
}

std::string window_path(const std::string& folder, int index) {
  return folder + "/node-" + std::to_string(index);
}

std::vector<PastRun> past_runs() {
  std::vector<PastRun> runs;
  const std::string boot = boot_id();
  const auto add = [&](const std::string& name, const std::optional<std::string>& text) {
    auto record = text ? decode_record(*text) : Failure{Errc::kNotFound, ""};
    if (!record) return;
    PastRun& run = runs.emplace_back(PastRun{name, std::move(*record)});
    if (run.record.took_s) return;
    const LauncherLife& life = run.record.launcher;
    const bool lives = life.boot == boot && agent::read_proc_stat(life.pid).started == life.started;
    run.state = lives ? RunState::kRunning : RunState::kVanished;
  };
  if (const auto folder = history_folder()) {
    for (const std::string& name : folder->names()) add(name, folder->read(name));
  }
  const std::size_t kept = runs.size();
  if (keeps_history()) {
    for (const std::string& folder : own_run_folders()) {
      add(folder, RecordFolder(folder).read(kLiveRecord));
    }
  }
  std::sort(runs.begin() + static_cast<std::ptrdiff_t>(kept), runs.end(),
            [](const PastRun& a, const PastRun& b) { return a.record.started < b.record.started; });
  std::reverse(runs.begin(), runs.end());
  return runs;
}

}  // namespace ddprun::launcher
