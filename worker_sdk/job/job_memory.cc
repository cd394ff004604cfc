#include "worker_sdk/job/job_memory.h"

#include <algorithm>
#include <charconv>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "common/system/folder.h"
#include "ddprun/objects.h"
#include "worker_sdk/base/operation.h"
#include "worker_sdk/checkpoint/memory_checkpoint.h"
#include "worker_sdk/group/group_inside.h"
#include "worker_sdk/job/kept_state.h"

namespace ddprun::elastic {

using worker_sdk::Clock;
using worker_sdk::GroupInside;

namespace {

constexpr const char* kName = "elastic-job";
constexpr std::uint64_t kCopies = 3;  // Two, and the one that is being written.

std::optional<CheckpointPlace> place_of(std::int64_t every) {
  if (every < 0 || !has_memory_folder()) return std::nullopt;
  return in_memory(kName);
}

std::uint64_t size_of_folder() {
  std::uint64_t bytes = 0;
  const std::string text = GroupInside::process_variables()["DDPRUN_MEMORY_SIZE"];
  std::from_chars(text.data(), text.data() + text.size(), bytes);
  return bytes;  // 0: not known.
}

std::string mib_text(std::uint64_t bytes) {
  return std::to_string((bytes + (1U << 20) - 1) >> 20) + " MiB";
}

}  // namespace

JobMemory::JobMemory(std::int64_t every)
    : every_(every), place_(place_of(every)), interval_(std::max<std::int64_t>(every, 0)) {}

std::int64_t JobMemory::standing() const {
  if (!place_) return -1;
  return std::max(agreed_, interval_.proposal());
}

void JobMemory::begin(int rank, std::int64_t committed, std::int64_t saves,
                      std::vector<int> together) {
  is_on_ = saves >= 0;
  const auto me = std::find(together.begin(), together.end(), rank);
  share_ = {.index = static_cast<int>(me - together.begin()),
            .count = static_cast<int>(together.size())};
  together_ = std::move(together);
  if (place_ && !is_on_ && share_.index == 0) {
    warn(rank,
         "other nodes of the run have no memory folder, so the job's state is not kept there: give "
         "--memory-folder on every node");
  }
  agreed_ = std::max<std::int64_t>(saves, 0);
  whole_ = 0;
  begin_at(committed);
}

void JobMemory::end() {
  writer_.reset();
  is_on_ = false;
}

void JobMemory::warn(int rank, const std::string& text) {
  if (std::exchange(has_warned_, true)) return;
  std::fprintf(stderr, "ddprun: warning: rank %d: %s\n", rank, text.c_str());
}

// The folder also has what the program itself keeps there.
bool JobMemory::lacks_room(std::span<const CheckpointPiece> pieces) const {
  const std::uint64_t size = size_of_folder();
  if (share_.index != 0 || size == 0) return false;
  std::uint64_t state = 0;
  for (const CheckpointPiece& piece : pieces) {
    const std::size_t elements = piece.total == 0 ? piece.part.count : piece.total;
    state += elements * size_of(piece.part.type);
  }
  const std::string root = place_->folder.substr(0, place_->folder.rfind('/'));
  const std::uint64_t all = occupied_bytes(root);
  const std::uint64_t own = occupied_bytes(place_->folder);
  return all - std::min(own, all) + kCopies * state > size;
}

void JobMemory::save(ProcessGroup& group, std::int64_t committed,
                     std::span<const CheckpointPiece> pieces, Clock::time_point began) {
  const bool is_full = lacks_room(pieces);
  if (is_full) {
    warn(group.rank(), "the job's state is not kept in the memory folder, which has " +
                           mib_text(size_of_folder()) +
                           ": it must have room for three times the state, beside what the program "
                           "keeps there: ddprun --memory-folder SIZE, or turn it off by "
                           "memory_every");
  }
  std::int64_t numbers[] = {interval_.proposal(), is_full ? 1 : 0};
  group.all_reduce(buffer(numbers, 2), ReduceOp::max, {.on_host = true});
  agreed_ = numbers[0];
  next_ = interval_.next(committed, agreed_);
  if (numbers[1] != 0) return interval_.save_took(Clock::now() - began);
  try {
    if (!writer_) {
      const CheckpointOptions options{.keep = 1, .ranks = together_, .whole = whole_};
      writer_ = std::make_unique<CheckpointWriter>(group, *place_, options);
    }
    writer_->save_async(committed, pieces);
  } catch (const Error& error) {
    if (GroupInside::is_dead(group) || error.kind() == ErrorKind::membership_changed) throw;
    if (group.rank() == 0) {
      warn(0, std::string("the job's state is not kept in the memory folder: ") + error.what());
    }
  }
  interval_.save_took(Clock::now() - began);
}

std::optional<std::int64_t> JobMemory::restore(
    ProcessGroup& group, std::int64_t above,
    const std::function<void(const std::string& path, const Checkpoint&)>& read) {
  for (worker_sdk::CheckpointBounds bounds{.above = above};;) {
    const auto found = worker_sdk::newest_checkpoint(group, *place_, bounds);
    if (!found) return std::nullopt;
    std::string problem = found->problem;
    try {
      if (problem.empty()) read(found->path, Checkpoint(found->path));
    } catch (const Error& error) {
      problem = error.what();
    }
    const auto problems = all_gather_bytes(group, problem);
    const auto worst = std::find_if(problems.begin(), problems.end(),
                                    [](const std::string& one) { return !one.empty(); });
    if (worst == problems.end()) {
      whole_ = found->number;
      return found->step;
    }
    if (group.rank() == 0) {
      std::fprintf(stderr,
                   "ddprun: warning: rank 0: the state of step %" PRId64
                   " in the memory folder cannot be used: %s\n",
                   found->step, worst->c_str());
    }
    bounds.below = found->number;
  }
}

}  // namespace ddprun::elastic
