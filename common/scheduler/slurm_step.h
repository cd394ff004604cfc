#pragma once
// What the variables of a Slurm step mean, and the ports at which what a scheduler has started can
// meet. Pure. Called by the launcher (allocation.cc) for one ddprun per node, and by the SDK
// (started_tasks.cc) for ranks that srun itself starts.

#include <cstdint>
#include <optional>
#include <string_view>

namespace ddprun::scheduler {

// SLURM_STEP_ID of a step that srun has started, in which each process is a task. Slurm also
// numbers steps without tasks: the interactive shell of salloc, the batch script, processes that an
// administrator adopts. A program in there starts tasks by srun.
bool is_task_step(std::string_view step_id);

// SLURM_STEP_TASKS_PER_NODE, such as "2(x3),1": the number of tasks on a node of the step, and the
// largest such number. std::nullopt and 0 if the text does not contain it.
std::optional<int> tasks_on_node(std::string_view tasks_per_node, int node);
int most_tasks(std::string_view tasks_per_node);

// Ports below Linux's ephemeral ones, so that no other program uses them by chance. A job always
// gets the same sequence: the first port is tried first, and the others if it is taken, by a
// service or by another job.
inline constexpr int kMeetingPorts = 4;
std::uint16_t meeting_port(std::uint64_t place, int i);

// The `place` of a step of Slurm: neighbours on one host get other ports.
std::uint64_t place_of_step(std::uint64_t job, std::uint64_t step);

}  // namespace ddprun::scheduler
