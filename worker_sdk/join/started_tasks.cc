#include "worker_sdk/join/started_tasks.h"

#include <limits>

#include "common/checksum.h"
#include "common/scheduler/slurm_step.h"

namespace ddprun::worker_sdk {
namespace {

constexpr int kNumberMax = std::numeric_limits<int>::max();
constexpr char kHere[] = "localhost";
constexpr char kAnyway[] =
    "; to run each task as a job of its own, set RANK=0 and WORLD_SIZE=1 in its environment";

// The names of one starter's variables; empty where it has none.
struct Names {
  std::string starter;
  std::string rank, size, local_rank, local_size;
  std::string job;
};

int required(const Variables& variables, const Names& names, const std::string& name, int min,
             int max) {
  const auto value = number_of(variables, name, min, max);
  if (value) return *value;
  throw_environment(names.starter + " started this program, but " + name + " is not set" + kAnyway);
}

std::optional<int> optional_number(const Variables& variables, const std::string& name, int min) {
  return name.empty() ? std::nullopt : number_of(variables, name, min, kNumberMax);
}

void check_below(const Names& names, int rank, int size) {
  if (rank < size) return;
  throw_environment(names.rank + "=" + std::to_string(rank) + " is not below " + names.size + "=" +
                    std::to_string(size) + ": " + names.starter +
                    " started parts that do not know of each other; start one ddprun per node "
                    "instead, or set RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT");
}

std::optional<StartedTasks> read(const Variables& variables, const Names& names) {
  StartedTasks tasks;
  tasks.starter = names.starter;
  tasks.size = required(variables, names, names.size, 1, kWorldSizeMax);
  if (tasks.size == 1) return std::nullopt;
  tasks.rank = required(variables, names, names.rank, 0, kWorldSizeMax);
  check_below(names, tasks.rank, tasks.size);
  tasks.local_rank = optional_number(variables, names.local_rank, 0);
  tasks.local_size = optional_number(variables, names.local_size, 1);
  if (tasks.local_size == tasks.size) tasks.host = kHere;
  const auto job = names.job.empty() ? std::nullopt : text_of(variables, names.job);
  if (job) {
    tasks.job = names.starter + " " + job->substr(0, 200);
    tasks.place = checksum(tasks.job.data(), tasks.job.size());
  }
  return tasks;
}

std::optional<StartedTasks> read_flux(const Variables& variables) {
  auto tasks = read(variables, {.starter = "flux run",
                                .rank = "FLUX_TASK_RANK",
                                .size = "FLUX_JOB_SIZE",
                                .local_rank = "FLUX_TASK_LOCAL_ID",
                                .local_size = "",
                                .job = "FLUX_JOB_ID"});
  if (!tasks || number_of(variables, "FLUX_JOB_NNODES", 1, kNumberMax) != 1) return tasks;
  tasks->local_size = tasks->size;
  tasks->host = kHere;
  return tasks;
}

// SLURM_NTASKS is that of the step, too, unless a script has set it.
std::string slurm_size(const Variables& variables) {
  const std::string of_step = "SLURM_STEP_NUM_TASKS";
  return text_of(variables, of_step) ? of_step : "SLURM_NTASKS";
}

// The first host of the step, which has its rank 0 unless a file gives each task its host.
std::string slurm_host(const Variables& variables, const StartedTasks& tasks) {
  if (number_of(variables, "SLURM_STEP_NUM_NODES", 1, kNumberMax) == 1) return kHere;
  const auto list = text_of(variables, "SLURM_STEP_NODELIST");
  if (!list || (tasks.rank == 0 && tasks.node != 0)) return "";
  const auto hosts = scheduler::expand_host_list(*list);
  if (!hosts) throw_environment("SLURM_STEP_NODELIST: " + hosts.error().context);
  return hosts->front();
}

std::optional<StartedTasks> read_slurm(const Variables& variables) {
  const Names names{.starter = "srun",
                    .rank = "SLURM_PROCID",
                    .size = slurm_size(variables),
                    .local_rank = "SLURM_LOCALID",
                    .local_size = "",
                    .job = ""};
  auto tasks = read(variables, names);
  if (!tasks) return tasks;
  tasks->node = number_of(variables, "SLURM_NODEID", 0, kNumberMax).value_or(0);
  tasks->local_size = scheduler::tasks_on_node(
      text_of(variables, "SLURM_STEP_TASKS_PER_NODE").value_or(""), tasks->node);
  const int job = required(variables, names, "SLURM_JOB_ID", 1, kNumberMax);
  const int step = required(variables, names, "SLURM_STEP_ID", 0, kNumberMax);
  tasks->job = "slurm-" + std::to_string(job) + "." + std::to_string(step);
  if (const auto again = number_of(variables, "SLURM_RESTART_COUNT", 0, kNumberMax)) {
    tasks->job += "-r" + std::to_string(*again);
  }
  tasks->place =
      scheduler::place_of_step(static_cast<std::uint64_t>(job), static_cast<std::uint64_t>(step));
  tasks->host = slurm_host(variables, *tasks);
  return tasks;
}

// PMIx has the size in its server only.
[[noreturn]] void refuse_pmix() {
  throw_environment(std::string("PMIX_RANK is set, but no variable with the number of ranks: "
                                "start one ddprun per node instead, or set RANK, WORLD_SIZE, "
                                "MASTER_ADDR and MASTER_PORT") +
                    kAnyway);
}

}  // namespace

std::optional<StartedTasks> read_started_tasks(const Variables& variables) {
  const auto has = [&](const char* name) { return text_of(variables, name).has_value(); };
  Names pmi{.starter = "mpiexec",
            .rank = "PMI_RANK",
            .size = "PMI_SIZE",
            .local_rank = "PMI_LOCAL_RANK",
            .local_size = "PMI_LOCAL_SIZE",
            .job = "PALS_APID"};
  if (has("OMPI_COMM_WORLD_SIZE")) {
    return read(variables, {.starter = "mpirun",
                            .rank = "OMPI_COMM_WORLD_RANK",
                            .size = "OMPI_COMM_WORLD_SIZE",
                            .local_rank = "OMPI_COMM_WORLD_LOCAL_RANK",
                            .local_size = "OMPI_COMM_WORLD_LOCAL_SIZE",
                            .job = "PMIX_NAMESPACE"});
  }
  if (has("MPI_LOCALNRANKS")) {
    pmi.local_rank = "MPI_LOCALRANKID", pmi.local_size = "MPI_LOCALNRANKS", pmi.job = "";
    return read(variables, pmi);
  }
  if (has("PMI_LOCAL_SIZE")) return read(variables, pmi);
  if (has("FLUX_TASK_RANK")) return read_flux(variables);
  if (scheduler::is_task_step(text_of(variables, "SLURM_STEP_ID").value_or("")) &&
      has("SLURM_PROCID")) {
    return read_slurm(variables);
  }
  if (has("PMI_SIZE")) return read(variables, pmi);
  if (has("PMIX_RANK")) refuse_pmix();
  return std::nullopt;
}

}  // namespace ddprun::worker_sdk
