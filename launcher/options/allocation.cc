#include "launcher/options/allocation.h"

#include "common/scheduler/slurm_step.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

static_assert(kNodesMax == scheduler::kListedHostsMax);

constexpr int kNumberMax = 2'147'483'647;

bool in_task_step(const Environment& environment) {
  return scheduler::is_task_step(value_of(environment, "SLURM_STEP_ID"));
}

// Reads variables of one scheduler; remembers the first that is not what it must be.
class Variables {
 public:
  Variables(const Environment& environment, std::string scheduler)
      : environment_(environment), scheduler_(std::move(scheduler)) {}

  std::string text(std::string_view name) {
    const auto found = environment_.find(name);
    if (found != environment_.end() && !found->second.empty()) return found->second;
    if (!failure_)
      failure_ = usage(scheduler_ + " started this, but " + std::string(name) + " is not set");
    return "";
  }

  int number(std::string_view name, int min, int max) {
    const std::string given = text(name);
    if (failure_) return min;
    const Result<int> value = parse_integer(given, min, max);
    if (value) return *value;
    failure_ = usage(std::string(name) + " '" + given.substr(0, 40) + "' of " + scheduler_ + ": " +
                     value.error().context);
    return min;
  }

  void fail(std::string sentence) {
    if (!failure_) failure_ = usage(std::move(sentence));
  }
  const std::optional<Failure>& failure() const { return failure_; }

 private:
  const Environment& environment_;
  const std::string scheduler_;
  std::optional<Failure> failure_;
};

void want_one_a_node(Variables& variables, int here, const std::string& starter,
                     const std::string& cure) {
  if (here == 1) return;
  variables.fail(
      starter + " started " + std::to_string(here) + " ddprun on one node; start one a node (" +
      cure +
      "), it starts the workers itself: --nproc-per-node. If each is meant to be a run of "
      "its own: --standalone");
}

Result<Allocation> read_slurm(const Environment& environment) {
  Variables variables(environment, "Slurm");
  Allocation found{.scheduler = "Slurm", .first_node_hosts = true};
  found.nodes = variables.number("SLURM_STEP_NUM_NODES", 1, kNodesMax);
  found.node_rank = variables.number("SLURM_NODEID", 0, found.nodes - 1);
  const int job = variables.number("SLURM_JOB_ID", 1, kNumberMax);
  const int step = variables.number("SLURM_STEP_ID", 0, kNumberMax);
  const int tasks = scheduler::most_tasks(variables.text("SLURM_STEP_TASKS_PER_NODE"));
  want_one_a_node(variables, tasks, "srun", "srun --ntasks-per-node=1");
  const std::string list = variables.text("SLURM_STEP_NODELIST");
  if (variables.failure()) return *variables.failure();
  auto hosts = scheduler::expand_host_list(list);
  if (!hosts) return usage("SLURM_STEP_NODELIST: " + hosts.error().context);
  found.hosts = std::move(*hosts);
  const std::uint64_t place =
      scheduler::place_of_step(static_cast<std::uint64_t>(job), static_cast<std::uint64_t>(step));
  found.endpoint = Endpoint{found.hosts.front(), scheduler::meeting_port(place, 0)};
  for (int i = 1; i < scheduler::kMeetingPorts; ++i) {
    found.more_ports.push_back(scheduler::meeting_port(place, i));
  }
  found.run_id = "slurm-" + std::to_string(job) + "." + std::to_string(step);
  if (const auto again = environment.find("SLURM_RESTART_COUNT"); again != environment.end()) {
    found.run_id += "-r" + again->second.substr(0, 10);  // The job was requeued: another run.
  }
  return found;
}

Result<Allocation> read_open_mpi(const Environment& environment) {
  Variables variables(environment, "Open MPI");
  Allocation found{.scheduler = "Open MPI"};
  found.nodes = variables.number("OMPI_COMM_WORLD_SIZE", 1, kNodesMax);
  found.node_rank = variables.number("OMPI_COMM_WORLD_RANK", 0, found.nodes - 1);
  const int here = variables.number("OMPI_COMM_WORLD_LOCAL_SIZE", 1, kNodesMax);
  want_one_a_node(variables, here, "mpirun", "mpirun --map-by ppr:1:node");
  if (variables.failure()) return *variables.failure();
  return found;
}

Result<Allocation> read_hydra(const Environment& environment) {
  Variables variables(environment, "MPICH's mpiexec");
  Allocation found{.scheduler = "MPICH's mpiexec"};
  found.nodes = variables.number("PMI_SIZE", 1, kNodesMax);
  found.node_rank = variables.number("PMI_RANK", 0, found.nodes - 1);
  const int here = variables.number("MPI_LOCALNRANKS", 1, kNodesMax);
  want_one_a_node(variables, here, "mpiexec", "mpiexec -ppn 1");
  if (variables.failure()) return *variables.failure();
  return found;
}

Result<Allocation> read_kubernetes(const Options& options, const Environment& environment) {
  Variables variables(environment, "Kubernetes");
  Allocation found{.scheduler = "Kubernetes", .first_node_hosts = true};
  found.nodes = options.nnodes->max;
  found.node_rank = variables.number("JOB_COMPLETION_INDEX", 0, kNodesMax - 1);
  if (variables.failure()) return *variables.failure();
  return found;
}

// Whether flags exclude the scheduler, or leave nothing to read from it.
bool is_given(const Options& options) {
  if (options.standalone || options.local_nodes || !options.hosts.empty() ||
      !options.host_discovery.empty()) {
    return true;
  }
  if (options.nnodes && options.nnodes->max == 1) return true;
  const bool placed = options.rdzv_endpoint || (options.master_addr && options.node_rank);
  return options.nnodes && placed;
}

bool is_indexed_job(const Options& options, const Environment& environment) {
  return !value_of(environment, "JOB_COMPLETION_INDEX").empty() && !options.standalone &&
         !options.local_nodes && options.nnodes && options.nnodes->max > 1 && !options.node_rank &&
         !options.rdzv_conf.is_host;
}

Result<std::optional<Allocation>> read_allocation(const Options& options,
                                                  const Environment& environment) {
  const auto some = [](Result<Allocation> found) -> Result<std::optional<Allocation>> {
    if (!found) return found.error();
    return std::optional(std::move(*found));
  };
  if (is_indexed_job(options, environment)) return some(read_kubernetes(options, environment));
  if (is_given(options)) return std::optional<Allocation>();
  // mpirun inside a Slurm job may have been started by srun: the launcher nearest to us counts.
  if (!value_of(environment, "OMPI_COMM_WORLD_SIZE").empty())
    return some(read_open_mpi(environment));
  if (!value_of(environment, "MPI_LOCALNRANKS").empty()) return some(read_hydra(environment));
  if (in_task_step(environment)) return some(read_slurm(environment));
  return std::optional<Allocation>();
}

std::optional<Failure> what_is_missing(const Allocation& found, const Options& options,
                                       const Environment& environment) {
  const std::string started =
      found.scheduler + " started this run on " + std::to_string(found.nodes) + " nodes";
  if (!found.endpoint && !options.rdzv_endpoint && !options.master_addr) {
    return usage(started +
                 " and provides no endpoint: give --rdzv-endpoint HOST with "
                 "the name of one of them");
  }
  const bool has_token = options.token_file || !value_of(environment, "DDPRUN_TOKEN").empty() ||
                         !value_of(environment, "DDPRUN_TOKEN_FILE").empty();
  if (has_token || !options.rdzv_conf.authenticated) return std::nullopt;
  return usage(started +
               ", which need one token. Before it starts them, run: export DDPRUN_TOKEN=$(openssl "
               "rand -hex 16), or give --token-file FILE on a disk that all nodes share, or "
               "--rdzv-conf auth=none");
}

// A warning in the batch script itself, on the first node: without srun the run gets one node of
// the many.
std::string forgotten_srun(const Options& options, const Environment& environment) {
  const auto nodes = environment.find("SLURM_JOB_NUM_NODES");
  if (nodes == environment.end() || in_task_step(environment)) return "";
  const Result<int> number = parse_integer(nodes->second, 2, kNodesMax);
  if (!number || is_given(options) || options.nnodes) return "";
  return "this Slurm job has " + nodes->second +
         " nodes, and only this one is used; for all of them: srun --ntasks-per-node=1 ddprun ...";
}

}  // namespace

Result<Surroundings> read_surroundings(const Options& options, const Environment& environment) {
  auto found = read_allocation(options, environment);
  if (!found) return found.error();
  Surroundings around{std::move(*found), forgotten_srun(options, environment)};
  if (!around.allocation) return around;
  if (around.allocation->nodes == 1) return Surroundings();
  if (auto missing = what_is_missing(*around.allocation, options, environment)) return *missing;
  return around;
}

std::string scheduler_step(const Environment& environment) {
  const std::string job = value_of(environment, "SLURM_JOB_ID");
  const std::string step = value_of(environment, "SLURM_STEP_ID");
  const std::string tasks = value_of(environment, "SLURM_STEP_NUM_TASKS");
  if (!job.empty() && !step.empty() && !tasks.empty() && tasks != "1") {
    return "Slurm step " + job.substr(0, 20) + "." + step.substr(0, 20);
  }
  const std::string jobs_of_mpirun = value_of(environment, "OMPI_MCA_ess_base_jobid");
  const std::string processes = value_of(environment, "OMPI_COMM_WORLD_SIZE");
  if (jobs_of_mpirun.empty() || processes.empty() || processes == "1") return "";
  return "mpirun job " + jobs_of_mpirun.substr(0, 20);
}

Options completed(Options options, const Allocation& allocation) {
  options.scheduler = allocation.scheduler;
  options.node_names = allocation.hosts;
  const bool place_is_ours = !options.rdzv_endpoint && !options.master_addr;
  if (!options.nnodes) options.nnodes = NodeRange{allocation.nodes, allocation.nodes};
  const bool has_seat = allocation.node_rank < options.nnodes->max;  // Else it is a spare.
  if (!options.node_rank && has_seat) options.node_rank = allocation.node_rank;
  if (!options.rdzv_id && !allocation.run_id.empty()) options.rdzv_id = allocation.run_id;
  if (place_is_ours) options.rdzv_endpoint = allocation.endpoint;
  if (place_is_ours) options.derived_ports = allocation.more_ports;
  const bool at_first_node = allocation.first_node_hosts && (place_is_ours || !allocation.endpoint);
  if (at_first_node && !options.rdzv_conf.is_host) {
    options.rdzv_conf.is_host = allocation.node_rank == 0;
  } else if (options.rdzv_endpoint && !options.rdzv_backend) {
    options.rdzv_backend = RdzvBackend::kC10d;  // The address's owner hosts, whatever its rank.
  }
  return options;
}

}  // namespace ddprun::launcher
