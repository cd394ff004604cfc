#pragma once
// Checkpoints that all ranks write together, each rank its part, while training continues, and that
// any number of ranks can read.
//
//   ddprun::CheckpointWriter writer(group, "/shared/run7", {.keep = 3});
//   writer.save_async(step, pieces);                    // Blocks only for a copy in memory.
//   ...
//   if (const auto path = ddprun::latest_checkpoint(group, "/shared/run7")) {
//     const ddprun::Checkpoint checkpoint(*path);
//     checkpoint.read("weight", ddprun::buffer(weight.data(), weight.size()));
//   }
//
// A checkpoint is a folder checkpoint-<number>-step-<step>, whose number is one above the highest
// present. It contains a file for each rank that saved data, and manifest.json with the location
// and checksum of each array. Each file is written under a temporary name, synced and renamed, and
// a checkpoint is valid only if all its files are present. So a checkpoint is complete or ignored,
// whenever its writers die. All ranks must share the folder. Arrays are little-endian.

#include "ddprun/cxx20.h"

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ddprun/process_group.h"

namespace ddprun {

/// Where checkpoints are.
struct CheckpointPlace {
  std::string folder;
  /// Whether all hosts see the same folder. If not, each has a folder of that name with the files
  /// of its own ranks, and with the manifest.
  bool shared = true;
  /// If not shared: a folder with one folder per other host, `copies`/HOST/..., in which that
  /// host's files may be, too, below the path `within`; empty: there is none.
  std::string copies = {};
  std::string within = {};
};

/// The place `name` in this host's memory folder (`ddprun --memory-folder SIZE`), which outlives
/// the processes of the run and is removed with it. Its checkpoints cost a copy in memory, and
/// survive all but the loss of a host together with the one that keeps its copy. Throws
/// Error(bad_environment) if the run has no memory folder; check with has_memory_folder().
CheckpointPlace in_memory(const std::string& name = "checkpoints");
bool has_memory_folder() noexcept;

/// All or part of an array, as one rank saves it.
struct CheckpointPiece {
  std::string name;        ///< The array's name: any UTF-8 text, such as a parameter's path.
  Buffer part;             ///< In host memory. Copied before save_async() returns.
  std::size_t offset = 0;  ///< The start of the part in the array, in elements.
  std::size_t total = 0;   ///< Elements of the array; 0: the part is all of it.
};

/// This rank's share of an array that all ranks have; shares are of equal size.
CheckpointPiece even_piece(const ProcessGroup& group, std::string name, Buffer whole);
/// The share of the rank with the number `index` of `count` ranks.
struct EvenShare {
  int index = 0;
  int count = 1;
};
CheckpointPiece even_piece(const EvenShare& share, std::string name, Buffer whole);

struct CheckpointOptions {
  /// Number of complete checkpoints to keep in the folder; rank 0 removes older ones, and
  /// incomplete ones older than a complete one. While a checkpoint is written, as many older ones
  /// stay; wait() and save() remove the one too many. 0: keep all; 2 if the place is not shared.
  int keep = 0;
  /// Ranks, this one among them, whose pieces are a whole checkpoint in a place that is not shared:
  /// those of one host. Other hosts' ranks write one of their own at the same time, so the files of
  /// any one host suffice. Empty: the pieces of all ranks are one checkpoint.
  std::vector<int> ranks = {};
  /// In a place that is not shared: the number of a checkpoint of which all ranks are known to have
  /// every part, as one that they have loaded. It stays until a newer one is complete; those
  /// between it and the next one are removed. The same on all ranks; 0: none is known.
  std::uint64_t whole = 0;
};

/// All calls except the constructor are collective: every rank makes them, with the same step, from
/// the thread that uses the group. A background thread writes. Not movable.
class CheckpointWriter {
 public:
  /// Creates `folder` on first use. Keeps a handle of the group.
  CheckpointWriter(ProcessGroup& group, std::string folder, const CheckpointOptions& options = {});
  CheckpointWriter(ProcessGroup& group, CheckpointPlace place,
                   const CheckpointOptions& options = {});
  CheckpointWriter(const CheckpointWriter&) = delete;
  ~CheckpointWriter();  ///< Waits until this rank has written; discards the error.

  /// Copies this rank's pieces, agrees with the other ranks on the manifest (the pieces of all
  /// ranks must cover each array exactly once) and returns while writing continues. Waits for the
  /// previous checkpoint first. Throws the same error on every rank: the failure of the previous
  /// checkpoint on any rank (this call then saves nothing; the caller may continue or call again),
  /// or Error(bad_argument) that names an array not covered exactly once. Readers can use the
  /// checkpoint once the last rank has written; no further call is needed.
  void save_async(std::int64_t step, std::span<const CheckpointPiece> pieces);

  /// Returns when the current checkpoint, if any, is complete; throws the failure of any rank, and
  /// Error(system) if rank 0 does not find what other ranks have written, because the folder is not
  /// shared by all hosts. Without wait(), the save_async() after the next one throws that.
  void wait();

  /// save_async() and wait().
  void save(std::int64_t step, std::span<const CheckpointPiece> pieces);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// The newest complete checkpoint in `folder`, if any. Checks manifests and file sizes, not array
/// contents. The form with a group is collective: rank 0 reads the folder.
std::optional<std::string> latest_checkpoint(const std::string& folder);
std::optional<std::string> latest_checkpoint(ProcessGroup& group, const std::string& folder);

/// The complete checkpoint of the highest step in any of `places`; of equal ones that of the first
/// place. Collective; of a place that is not shared the files of all hosts count, and the copies
/// that hosts keep of others, and those that are missing on this host are fetched into its folder
/// before this returns: `Checkpoint` then reads it like any other.
///
///   const auto path = ddprun::latest_checkpoint(group, {ddprun::in_memory(), {"/shared/run7"}});
std::optional<std::string> latest_checkpoint(ProcessGroup& group,
                                             const std::vector<CheckpointPlace>& places);

/// Reads a checkpoint. Immutable: several threads may use it. Communicates nothing. Not movable.
class Checkpoint {
 public:
  struct Array {
    std::string name;
    DataType type = DataType::f32;
    std::size_t count = 0;  ///< Elements.
  };

  /// Throws Error(corrupt) if there is no manifest that can be read in `path`, or it is damaged, or
  /// a file is missing or has another size.
  explicit Checkpoint(const std::string& path);
  ~Checkpoint();

  std::int64_t step() const noexcept;
  int world_size() const noexcept;  ///< Of the job that saved it.
  const std::vector<Array>& arrays() const noexcept;
  const Array* find(std::string_view name) const noexcept;  ///< Null if there is none.

  /// Fills `out` with the elements of an array from `offset` on, whichever files hold them.
  /// Verifies checksums: Error(corrupt) names file and array, and the contents of `out` are then
  /// undefined. Throws Error(bad_argument) if the array does not exist, has another type or is too
  /// short.
  void read(std::string_view name, Buffer out, std::size_t offset = 0) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// For programs that have no group yet, as before elastic::Job::run(): calls `load` with the newest
/// complete checkpoint in `folder`, and returns its step, or nothing if there is none. A rank that
/// trains meanwhile may remove the checkpoint (CheckpointOptions::keep) for a newer one: then
/// `load` is called again, with that. Other errors of `load` pass.
std::optional<std::int64_t> load_latest(const std::string& folder,
                                        const std::function<void(const Checkpoint&)>& load);

}  // namespace ddprun
