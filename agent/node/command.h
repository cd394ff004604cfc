#pragma once
// What the user typed -> what is executed. Decisions are pure; the files are checked through
// FileProbe, once for each run and not for each worker. Called by the agent.

#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace ddprun::agent {

enum class FileKind {
  kAbsent,
  kFolder,
  kFile,  // A file that we may not execute.
  kExecutable,
};

// The file system as far as it is needed here.
class FileProbe {
 public:
  virtual ~FileProbe() = default;
  virtual FileKind kind(const std::string& path) const = 0;
  virtual std::vector<std::string> names_in(const std::string& folder) const = 0;
  // Python runs it as a whole: a folder with a __main__.py, or a zip archive. False for an archive
  // that is executable and begins with a #! line: that names its interpreter.
  virtual bool is_application(const std::string& path) const = 0;
};

// The real one.
class PosixFileProbe : public FileProbe {
 public:
  FileKind kind(const std::string& path) const override;
  std::vector<std::string> names_in(const std::string& folder) const override;
  bool is_application(const std::string& path) const override;
};

struct CommandRequest {
  std::string program;  // "train.py", "my.module" with `module`, "./train", "train", "app.pyz".
  std::vector<std::string> arguments = {};
  bool module = false;     // -m
  bool no_python = false;  // --no-python
  bool run_path = false;   // --run-path: by Python's runpy.run_path, whatever the name ends in.
  bool pass_local_rank =
      false;  // torch.distributed.launch without --use-env: --local-rank=N comes first.
};

// Where to search. An empty string: there is none.
struct CommandContext {
  std::string working_folder;
  std::string path;                      // PATH
  std::string python;                    // PYTHON_EXEC
  std::vector<std::string> own_folders;  // Of ddprun itself: its examples and programs.
};

// PATH, PYTHON_EXEC and the folders around our own executable.
CommandContext current_command_context();

// argv with argv[0] an absolute path. `${local_rank}` is still in it. A Failure lists the searched
// places and the name that comes near.
Result<std::vector<std::string>> resolve_command(const CommandRequest& request,
                                                 const CommandContext& context,
                                                 const FileProbe& files);

// `argv` with `${local_rank}` replaced.
std::vector<std::string> command_for_rank(std::vector<std::string> argv, int local_rank);

}  // namespace ddprun::agent
