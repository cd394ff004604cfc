#pragma once
// Temporary folders of a run: the launcher removes them at its end, the keeper if the launcher is
// killed. Used by main.cc.

#include <string>
#include <vector>

#include "common/error.h"

namespace ddprun::launcher {

class ScratchFolder {
 public:
  enum class Use {
    kFiles,   // Under TMPDIR, or /tmp if that is missing, read-only or full, or in memory.
    kState,   // Rather under XDG_RUNTIME_DIR, which is not cleaned.
    kMemory,  // Under /dev/shm, or where place_in() chose.
  };
  // `name` and a random number. Creates nothing yet.
  ScratchFolder(const std::string& name, Use use);
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  // Its possible places; the keeper has to know them before it exists.
  const std::vector<std::string>& places() const { return places_; }
  void place_in(const std::string& folder);  // Before places() is asked for.
  Result<void> make();  // Warns once in a program if only memory (/dev/shm) is left.
  const std::string& path() const { return path_; }  // Empty before it is made.
  void remove();                                     // With its content.

 private:
  const std::string name_;
  std::vector<std::string> places_;
  std::string path_;
};

// Removes each of them with its content.
void remove_places(const std::vector<std::string>& places);

// The folders that a run may need.
struct RunFolders {
  ScratchFolder state{"ddprun-", ScratchFolder::Use::kState};  // The hosted daemon's journal.
  // Workers' error files, the agents' sockets, and what these leave at their end.
  ScratchFolder files{"ddprun_", ScratchFolder::Use::kFiles};
  ScratchFolder report{"ddprun_report_", ScratchFolder::Use::kFiles};
  ScratchFolder ranks{"ddprun_ranks_", ScratchFolder::Use::kFiles};  // Sockets of the workers.

  ScratchFolder memory{"ddprun-memory-",
                       ScratchFolder::Use::kMemory};  // The nodes' memory folders.

  std::vector<std::string> places() const;  // Of all folders.
  void remove();
};

}  // namespace ddprun::launcher
