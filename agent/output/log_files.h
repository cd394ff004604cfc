#pragma once
// Where workers' files go, named as torchrun names them:
//
//   <log_dir>/<run_id>_<random>/attempt_<restart>/<local_rank>/{stdout.log,stderr.log,error.json}
//   <log_dir>/<run_id>_<random>/attempt_<restart>/<local_rank>/flight_recorder.json
//   <log_dir>/<run_id>_<random>/attempt_<restart>/{filtered_stdout.log,filtered_stderr.log}
//
// Used by the agent and by Output.

#include <string>
#include <string_view>

#include "common/error.h"

namespace ddprun::agent {

class LogFolder {
 public:
  // No files at all: what --log-dir /dev/null asks for.
  LogFolder() = default;

  // Makes <log_dir>/<run_id>_<random>; without `log_dir` under TMPDIR or /tmp.
  static Result<LogFolder> create(const std::string& log_dir, const std::string& run_id);

  // Error files alone, in a folder that is there and whose names begin with `stem`: no folder for
  // each worker, whose making was a fifth of the whole start.
  static LogFolder for_error_files(std::string folder, std::string stem);

  bool enabled() const { return !folder_.empty(); }
  const std::string& folder() const { return folder_; }

  // The folder of one worker of one attempt, made if need be; an error.json that an earlier round
  // of the same attempt left there is removed.
  Result<std::string> make_worker_folder(int restart_count, int local_rank) const;

  // Where files of a whole attempt go: filtered_stdout.log.
  std::string attempt_folder(int restart_count) const;

  // TORCHELASTIC_ERROR_FILE; empty without a folder.
  std::string error_file(int restart_count, int local_rank) const;

  // Where a rank may leave all that is known of what it is in; empty where nothing is kept.
  std::string dump_file(int restart_count, int local_rank) const;

 private:
  std::string worker_folder(int restart_count, int local_rank) const;

  std::string folder_;
  std::string stem_;  // Not empty: there are error files only.
};

// The last `bytes_max` bytes of the file; empty if it cannot be read.
std::string read_file_end(const std::string& path, std::size_t bytes_max);

}  // namespace ddprun::agent
