#include "launcher/history/history.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <fstream>

#include "agent/process/proc_file.h"
#include "common/system/log.h"
#include "common/system/random_id.h"
#include "common/system/variable.h"

namespace ddprun::launcher {
namespace {

constexpr double kShortRun = 10;  // Seconds. Its end is not to wait for a disk.

// One home may be that of many machines.
std::string own_host() {
  std::array<char, 256> host{};
  ::gethostname(host.data(), host.size() - 1);
  std::string name = host.data();
  std::replace(name.begin(), name.end(), '/', '_');
  return name.empty() || name.front() == '.' ? "localhost" : name;
}

std::string boot_id() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  return boot;
}

}  // namespace

std::optional<RecordFolder> history_folder() {
  if (environment_variable(kHistoryVariable) == "0") return std::nullopt;
  std::string base = environment_variable("XDG_STATE_HOME");
  if (!base.starts_with('/')) {
    const std::string home = environment_variable("HOME");
    if (!home.starts_with('/')) return std::nullopt;
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
  if (run.folder_) run.folder_->make_room(run.name_);
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
  const auto folder = history_folder();
  if (!folder) return runs;
  const std::string boot = boot_id();
  for (const std::string& name : folder->names()) {
    const auto text = folder->read(name);
    auto record = text ? decode_record(*text) : Failure{Errc::kNotFound, ""};
    if (!record) continue;
    PastRun& run = runs.emplace_back(PastRun{name, std::move(*record)});
    if (run.record.took_s) continue;
    const LauncherLife& life = run.record.launcher;
    const bool lives = life.boot == boot && agent::read_proc_stat(life.pid).started == life.started;
    run.state = lives ? RunState::kRunning : RunState::kVanished;
  }
  std::reverse(runs.begin(), runs.end());
  return runs;
}

}  // namespace ddprun::launcher
