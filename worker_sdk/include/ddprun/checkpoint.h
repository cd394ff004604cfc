#pragma once
// Checkpoints that all ranks write together, each its part, while training goes on; and that any
// other number of ranks reads.
//
//   ddprun::CheckpointWriter writer(group, "/shared/run7", {.keep = 3});
//   writer.save_async(step, pieces);                    // Blocks for a copy in memory only.
//   ...
//   if (const auto path = ddprun::latest_checkpoint(group, "/shared/run7")) {
//     const ddprun::Checkpoint checkpoint(*path);
//     checkpoint.read("weight", ddprun::buffer(weight.data(), weight.size()));
//   }
//
// A checkpoint is a folder, checkpoint-<number>-step-<step>, with a file for each rank that had
// something to save, and manifest.json, which says where in them each array is, with checksums of
// all. Each of them gets the number after the highest that is there. Each file is
// written beside its place, synced and renamed, and a checkpoint counts only when all of them are
// there: so it is whole or it is none, whenever its writers die. The folder must be one that all
// ranks see; the bytes are those of the machine, which is little-endian.

#include "ddprun/cxx20.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddprun/process_group.h"

namespace ddprun {

/// What one rank saves of one array: all of it, or a part.
struct CheckpointPiece {
  std::string name;        ///< Of the array; UTF-8. Any text, such as a parameter's path.
  Buffer part;             ///< Of the host. Copied before save_async() returns.
  std::size_t offset = 0;  ///< Where the part begins in the array, in elements.
  std::size_t total = 0;   ///< Elements of the array; 0: the part is all of it.
};

/// This rank's share of an array that all ranks have: so that each writes as much as the others.
CheckpointPiece even_piece(const ProcessGroup& group, std::string name, Buffer whole);

struct CheckpointOptions {
  /// How many complete checkpoints to leave in the folder; rank 0 removes older ones, and what is
  /// torn and older than a complete one. 0: all.
  int keep = 0;
};

/// All calls but the constructor are collective: every rank makes them, with the same step, from
/// the thread that uses the group. A thread of its own does the writing. Not movable.
class CheckpointWriter {
 public:
  /// `folder` is made when it is first needed. Shares the group.
  CheckpointWriter(ProcessGroup& group, std::string folder, const CheckpointOptions& options = {});
  CheckpointWriter(const CheckpointWriter&) = delete;
  ~CheckpointWriter();  ///< Waits for this rank's writing to end; drops the error.

  /// Copies this rank's pieces, agrees with the others on the manifest (the pieces of all ranks
  /// must be each array, whole and once), and returns; the writing goes on. At most one checkpoint
  /// is under way: this waits for the one before. Throws on every rank alike: what went wrong with
  /// the one before, on any rank (then nothing is saved now: the caller may go on or call again);
  /// or Error(bad_argument) naming the array that is not whole. The checkpoint is to be had by
  /// readers when the last rank has written, whether or not anybody calls again.
  void save_async(std::int64_t step, std::span<const CheckpointPiece> pieces);

  /// Returns when the checkpoint under way, if there is one, is complete on all ranks; throws what
  /// went wrong on any.
  void wait();

  /// save_async() and wait().
  void save(std::int64_t step, std::span<const CheckpointPiece> pieces);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The newest complete checkpoint in `folder`; nothing if there is none. Looks at manifests and
/// sizes, not at the arrays. The form with a group is collective: rank 0 looks.
std::optional<std::string> latest_checkpoint(const std::string& folder);
std::optional<std::string> latest_checkpoint(ProcessGroup& group, const std::string& folder);

/// A checkpoint to read. Immutable: may be used by several threads. Communicates nothing. Not
/// movable.
class Checkpoint {
 public:
  struct Array {
    std::string name;
    DataType type = DataType::f32;
    std::size_t count = 0;  ///< Elements.
  };

  /// Throws Error(system) if `path` cannot be read, Error(corrupt) if the manifest is damaged or a
  /// file is missing or has another size.
  explicit Checkpoint(const std::string& path);
  ~Checkpoint();

  std::int64_t step() const noexcept;
  int world_size() const noexcept;  ///< Of those who saved it.
  const std::vector<Array>& arrays() const noexcept;
  const Array* find(std::string_view name) const noexcept;  ///< Null if there is none.

  /// Elements `offset` and following of an array into all of `out`, from whichever files they are
  /// in. What is read is checked: Error(corrupt) names file and array, and `out` holds anything
  /// then. Throws Error(bad_argument) if there is no such array, of this type, as long as this.
  void read(std::string_view name, Buffer out, std::size_t offset = 0) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddprun
