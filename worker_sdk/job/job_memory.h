#pragma once
// The copies of a job's state in the memory folders of its nodes (ddprun --memory-folder), from
// which it goes on when no worker is left that has the state: when they are written, and which is
// read. Used by JobInside, which knows what the state is.
//
// Each node keeps a whole copy of what is equal on all ranks, of which each of its workers writes a
// part. If there is state in shards, all nodes together keep one copy.

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ddprun/checkpoint.h"
#include "worker_sdk/elastic/save_interval.h"

namespace ddprun::elastic {

class JobMemory {
 public:
  // `every`: as JobOptions::memory_every.
  explicit JobMemory(std::int64_t every);

  // For Standing::saves.
  std::int64_t standing() const;
  void step_took(std::chrono::nanoseconds time) { interval_.step_took(time); }

  // A round begins, after `committed` steps. `saves`: as the ranks have agreed, Settlement::saves.
  // `together`: the ranks that write one copy, this one among them.
  void begin(int rank, std::int64_t committed, std::int64_t saves, std::vector<int> together);
  // The same, after the state of `committed` steps was restored.
  void begin_at(std::int64_t committed) { next_ = interval_.first(committed, agreed_); }
  void end();
  bool is_due(std::int64_t committed) const { return is_on_ && committed >= next_; }
  EvenShare share() const { return share_; }

  // Collective: saves the state after `committed` steps, in the background, or warns once and keeps
  // what is there. `pieces`: this rank's.
  // `began`: when the pieces began to be put together, which counts as time of the save.
  void save(ProcessGroup& group, std::int64_t committed, std::span<const CheckpointPiece> pieces,
            std::chrono::steady_clock::time_point began);

  // Collective: reads the newest copy of more than `above` steps that all ranks can read, and
  // returns its steps; nothing if there is none. `read` prepares, and throws Error if the copy
  // cannot be used.
  std::optional<std::int64_t> restore(
      ProcessGroup& group, std::int64_t above,
      const std::function<void(const std::string& path, const Checkpoint&)>& read);

 private:
  bool lacks_room(std::span<const CheckpointPiece> pieces) const;
  void warn(int rank, const std::string& text);

  const std::int64_t every_;
  const std::optional<CheckpointPlace> place_;
  SaveInterval interval_;
  bool is_on_ = false;  // In this round.
  std::int64_t next_ = 0;
  std::int64_t agreed_ = 0;
  std::uint64_t whole_ = 0;  // The number of the copy that this round has restored; 0: none.
  std::vector<int> together_;
  EvenShare share_;
  std::unique_ptr<CheckpointWriter> writer_;  // Of this round.
  bool has_warned_ = false;
};

}  // namespace ddprun::elastic
