#pragma once
// Folders of files as memory servers take and give them: a snapshot of one folder by hard links,
// and the same files put together elsewhere, in place as a whole or not at all. Both folders are
// ours alone; below them are folders and regular files only.

#include <cstdint>
#include <string>
#include <vector>

#include "agent/memory/memory_wire.h"
#include "common/error.h"
#include "common/system/descriptors.h"
#include "common/system/folder.h"

namespace ddprun::agent::memory {

struct Snapshot {
  std::vector<Entry> entries;
  std::uint64_t bytes = 0;  // Of all of them.
  // Shared locks (flock) on the files: they are not written to while these are open.
  std::vector<UniqueFd> locks = {};
};

// Links the files of `folder` into `into`, which is made for it, so that they stay what they are
// while they are sent even if they are replaced or removed. Files count whose name does not begin
// with '.' or end with ".tmp", in folders of which the same holds. One that has a lock, or is open
// for writing though its mode permits that, is an Entry to keep. Symbolic links and other special
// files are left out.
Result<Snapshot> take_snapshot(const std::string& folder, const std::string& into);

// `folder` and all folders below it.
std::vector<std::string> folders_of(const std::string& folder);

// One snapshot's files on their way into `target`. `workshop` is a folder beside it for what is not
// whole yet; a file that was not received completely is continued by the next Staging of the same
// workshop.
class Staging {
 public:
  Staging(std::string target, std::string workshop)
      : target_(std::move(target)), workshop_(std::move(workshop)) {}

  // Takes what `target` has already. Returns what is lacking.
  Result<std::vector<Want>> begin(std::vector<Entry> entries);
  // Pieces arrive in the order of the wants, each file from its offset on.
  Result<void> add(const Piece& piece);
  // The file changed while it was sent: the older one stays, if there is one.
  Result<void> skip(std::uint64_t entry);
  bool complete() const { return begun_ && next_ == wants_.size(); }
  // Exchanges what was put together for `target`.
  Result<Committed> commit();

 private:
  std::string part_of(const Entry& entry) const;
  std::string new_path(const Entry& entry) const;
  Result<bool> link_older(const Entry& entry, bool same) const;
  Result<void> finish(const Entry& entry);

  std::string target_, workshop_;
  std::vector<Entry> entries_;
  std::vector<Want> wants_;
  std::size_t next_ = 0;  // Of wants_.
  UniqueFd part_;
  std::uint64_t at_ = 0;  // Of part_.
  bool begun_ = false;
};

}  // namespace ddprun::agent::memory
