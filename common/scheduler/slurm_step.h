#pragma once
// What the variables of a Slurm step and its lists of hosts mean, and the ports at which what a
// scheduler has started can meet. Pure. Called by the launcher (allocation.cc) for one ddprun per
// node, and by the SDK (environment.cc) for ranks that srun itself starts.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

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

// Slurm's way to write many host names: "gpu[01-03,7],login" -> gpu01 gpu02 gpu03 gpu7 login.
inline constexpr std::size_t kHostListBytesMax = 131'072;  // The longest possible variable.
inline constexpr std::size_t kHostNameBytesMax = 255;
inline constexpr int kListedHostsMax = 131'072;

// All names, in the order of the list, which is that of Slurm's node numbers. Several brackets in
// one name count like the digits of a number, the last one fastest. A failure names the mistake and
// its place.
Result<std::vector<std::string>> expand_host_list(std::string_view text);

}  // namespace ddprun::scheduler
