#pragma once
// The last runs that this user started on this machine: one record per run, in
// $XDG_STATE_HOME/ddprun/history/HOST, or below ~/.local/state. Written by the launcher, at the
// start of a run and at its end; read by ddprunctl. DDPRUN_HISTORY=0 keeps none. If the folder
// cannot be written to, the record of a run is in its temporary folder, as long as it lives.

#include <optional>
#include <string>
#include <vector>

#include "common/history/run_record.h"
#include "common/system/record_folder.h"

namespace ddprun::launcher {

inline constexpr const char* kHistoryVariable = "DDPRUN_HISTORY";

bool keeps_history();  // False with DDPRUN_HISTORY=0.

// std::nullopt: there is no home, or records are not to be kept.
std::optional<RecordFolder> history_folder();

// The names of the temporary folders that hold the sockets of runs begin with it.
inline constexpr const char* kRunFolderPrefix = "ddprun_";

LauncherLife own_life();

// A run in progress, as its launcher sees it. Failures to keep records are ignored: the run matters
// more.
class KeptRun {
 public:
  // Writes the record of the start, and removes old ones.
  static KeptRun begin(RunRecord record);
  KeptRun() = default;

  RunRecord& record() { return record_; }
  // Writes the verdict so far, once, of a run that a signal is about to end: the sender may kill
  // everything before the end.
  void stopping(std::string verdict);
  // Writes the record of the end; `took_s` since the start.
  void end(double took_s);

 private:
  void put(RecordFolder::Safety safety);

  std::optional<RecordFolder> folder_;
  std::string name_;
  RunRecord record_;
};

// The newest first; before them running ones that are in no folder of records.
std::vector<PastRun> past_runs();

// Where the agent of a node of this launcher answers ddprunctl (agent/window/window.h); nodes count
// from 0.
std::string window_path(const std::string& folder, int index);

}  // namespace ddprun::launcher
