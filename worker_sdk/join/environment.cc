#include "worker_sdk/join/environment.h"

#include <limits>
#include <optional>

#include "common/checksum.h"
#include "common/scheduler/slurm_step.h"
#include "common/text/figures.h"
#include "ddprun/error.h"

namespace ddprun::worker_sdk {

void throw_environment(const std::string& text) {
  throw Error(ErrorKind::bad_environment, {.operation = "reading the environment"}, text);
}

std::optional<std::string> text_of(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  if (found == variables.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

std::optional<int> number_of(const Variables& variables, const std::string& name, int min,
                             int max) {
  const auto text = text_of(variables, name);
  if (!text) return std::nullopt;
  const auto value = as_number<int>(*text);
  if (!value || *value < min || *value > max) {
    throw_environment(name + "=" + text->substr(0, 100) + " is not a number from " +
                      std::to_string(min) + " to " + std::to_string(max));
  }
  return value;
}

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

namespace {

[[noreturn]] void throw_argument(const std::string& text) {
  throw Error(ErrorKind::bad_argument, {.operation = "ProcessGroup::init"}, text);
}

int required(std::optional<int> value, const std::string& name, const std::string& because) {
  if (!value) {
    throw_environment(name + " is not set" + because +
                      "; start this program with ddprun or torchrun, or pass InitOptions");
  }
  return *value;
}

// RANK and WORLD_SIZE, unless the options set them.
void read_rank(const Variables& variables, const InitOptions& options, Identity& identity) {
  const auto rank =
      options.rank >= 0 ? options.rank : number_of(variables, "RANK", 0, kWorldSizeMax);
  const auto size = options.world_size >= 0 ? options.world_size
                                            : number_of(variables, "WORLD_SIZE", 1, kWorldSizeMax);
  identity.rank = required(rank, "RANK", size ? ", though the world size is given" : "");
  identity.world_size = required(size, "WORLD_SIZE", ", though the rank is given");
  if (identity.rank < identity.world_size) return;
  const std::string text = "RANK=" + std::to_string(identity.rank) +
                           " is not below WORLD_SIZE=" + std::to_string(identity.world_size);
  if (options.rank >= 0 || options.world_size >= 0) throw_argument(text);
  throw_environment(text);
}

void read_locality(const Variables& variables, Identity& identity) {
  const auto local_size =
      number_of(variables, "LOCAL_WORLD_SIZE", 1, std::numeric_limits<int>::max());
  const auto local_rank = number_of(variables, "LOCAL_RANK", 0, std::numeric_limits<int>::max());
  if (local_size && *local_size > identity.world_size) {
    throw_environment("LOCAL_WORLD_SIZE=" + std::to_string(*local_size) +
                      " is above the world size of " + std::to_string(identity.world_size));
  }
  // With --virtual-local-rank every LOCAL_RANK is 0, so only an excess is an error.
  if (local_rank && local_size && *local_rank >= *local_size) {
    throw_environment("LOCAL_RANK=" + std::to_string(*local_rank) +
                      " is not below LOCAL_WORLD_SIZE=" + std::to_string(*local_size));
  }
  identity.local_rank = local_rank.value_or(0);
  identity.local_world_size = local_size.value_or(1);
  identity.group_rank = number_of(variables, "GROUP_RANK", 0, kWorldSizeMax).value_or(0);
}

void read_attempt(const Variables& variables, Identity& identity) {
  identity.restart_count =
      number_of(variables, "TORCHELASTIC_RESTART_COUNT", 0, std::numeric_limits<int>::max())
          .value_or(0);
  identity.run_id = text_of(variables, "TORCHELASTIC_RUN_ID").value_or("none");
}

void use(const StartedTasks& tasks, Identity& identity) {
  identity.rank = tasks.rank;
  identity.world_size = tasks.size;
  identity.local_rank = tasks.local_rank.value_or(0);
  identity.local_world_size = tasks.local_size.value_or(1);
  identity.group_rank = tasks.node;
}

std::string without_brackets(std::string host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    return host.substr(1, host.size() - 2);
  }
  return host;
}

PortRange read_ports(const Variables& variables) {
  const auto text = text_of(variables, kPortRangeVariable);
  if (!text) return {};
  const auto ports = port_range_of(*text);
  if (ports) return *ports;
  throw_environment(std::string(kPortRangeVariable) + "=" + text->substr(0, 100) +
                    " is no range of ports such as 29500-29599");
}

RelayPlace read_relay(const Variables& variables) {
  const auto text = text_of(variables, kRelayVariable);
  if (!text) return {};
  const auto place = relay_place_of(*text);
  if (place) return *place;
  throw_environment(std::string(kRelayVariable) + " is not as ddprun sets it");
}

Rendezvous of_environment(const Variables& variables) {
  const auto host = text_of(variables, "MASTER_ADDR");
  if (!host) throw_environment("MASTER_ADDR is not set, though RANK and WORLD_SIZE are");
  const int port = required(number_of(variables, "MASTER_PORT", 1, 65535), "MASTER_PORT", "");
  return {.kind = Rendezvous::Kind::kTcp,
          .host = without_brackets(*host),
          .port = static_cast<std::uint16_t>(port),
          .path = {},
          .hosted_by_rank_0 = text_of(variables, "TORCHELASTIC_USE_AGENT_STORE") != "True"};
}

[[noreturn]] void refuse_meeting(const StartedTasks& tasks, const std::string& what) {
  throw_environment(tasks.starter + " started this program as rank " + std::to_string(tasks.rank) +
                    " of " + std::to_string(tasks.size) + ", but " + what +
                    "; or start one ddprun per node, which starts the workers itself");
}

// MASTER_ADDR and MASTER_PORT, where they are set, go before what the scheduler names.
Rendezvous of_tasks(const Variables& variables, const StartedTasks& tasks) {
  const auto host = text_of(variables, "MASTER_ADDR");
  const auto port = number_of(variables, "MASTER_PORT", 1, 65535);
  if (!host && tasks.host.empty()) {
    refuse_meeting(tasks, "does not name the host of rank 0: set MASTER_ADDR to it");
  }
  const bool is_named = !tasks.job.empty() || tasks.host == "localhost";
  if (!port && !is_named) refuse_meeting(tasks, "gave the job no name: set MASTER_PORT, too");
  return {.kind = Rendezvous::Kind::kTcp,
          .host = without_brackets(host.value_or(tasks.host)),
          .port = static_cast<std::uint16_t>(port.value_or(0)),
          .path = {},
          .hosted_by_rank_0 = true,
          .is_searched = !port,
          .job = tasks.job,
          .place = tasks.place};
}

Rendezvous of_url(const std::string& method) {
  constexpr std::string_view kTcp = "tcp://", kFile = "file://";
  if (method.starts_with(kFile)) {
    const std::string path = method.substr(kFile.size());
    if (path.empty() || path.front() != '/') {
      throw_argument("init_method \"" + method + "\" needs an absolute path: file:///path");
    }
    return {.kind = Rendezvous::Kind::kFile, .host = {}, .path = path};
  }
  if (!method.starts_with(kTcp)) {
    throw_argument("init_method \"" + method +
                   "\" is none of env://, tcp://host:port, file:///path");
  }
  const std::string address = method.substr(kTcp.size());
  const std::size_t colon = address.rfind(':');
  const auto port =
      colon == std::string::npos ? std::nullopt : as_number<int>(address.substr(colon + 1));
  if (colon == 0 || !port || *port < 1 || *port > 65535) {
    throw_argument("init_method \"" + method + "\" is not tcp://host:port");
  }
  return {.kind = Rendezvous::Kind::kTcp,
          .host = without_brackets(address.substr(0, colon)),
          .port = static_cast<std::uint16_t>(*port),
          .path = {},
          .hosted_by_rank_0 = true};
}

std::string read_backend(const Variables& variables, const InitOptions& options) {
  const auto name = text_of(variables, "DDPRUN_BACKEND");
  const std::string backend = name.value_or(options.backend);
  for (const char* known : {"auto", "shm", "gloo", "cpu", "nccl", "self"}) {
    if (backend == known) return backend;
  }
  const std::string text = "\"" + backend +
                           "\" is none of the backends auto, shm, gloo, cpu, nccl, "
                           "self";
  if (name) throw_environment("DDPRUN_BACKEND: " + text);
  throw_argument(text);
}

GpuRequest read_gpu_request(const Variables& variables, const InitOptions& options) {
  GpuRequest request;
  request.device = options.nccl.device;
  request.may_shrink = options.nccl.may_shrink;
  request.max_ctas =
      number_of(variables, "DDPRUN_NCCL_MAX_CTAS", 1, 64).value_or(options.nccl.max_ctas);
  request.ranks_per_root = number_of(variables, "DDPRUN_NCCL_RANKS_PER_ROOT", 1, kWorldSizeMax)
                               .value_or(request.ranks_per_root);
  // NCCL 2.30 reads the first variable. Before 2.30, setting the second makes NCCL treat ranks as
  // being on different hosts.
  request.may_share = text_of(variables, "NCCL_MULTI_RANK_GPU_ENABLE").value_or("0") != "0" ||
                      text_of(variables, "NCCL_HOSTID").has_value();
  request.windows = number_of(variables, "DDPRUN_NCCL_WINDOWS", 0, 1).value_or(1) == 1;
  const std::string debug = text_of(variables, "NCCL_DEBUG").value_or("");
  request.verbose = debug == "INFO" || debug == "TRACE";
  return request;
}

}  // namespace

Plan read_environment(const Variables& variables, const InitOptions& options) {
  Plan plan;
  plan.backend = read_backend(variables, options);
  plan.gpu = read_gpu_request(variables, options);
  plan.host = text_of(variables, "DDPRUN_HOST").value_or(options.host);
  plan.interface = text_of(variables, "DDPRUN_SOCKET_IFNAME")
                       .value_or(text_of(variables, "GLOO_SOCKET_IFNAME").value_or(""));
  plan.ports = read_ports(variables);
  plan.relay = read_relay(variables);
  const bool by_environment = options.init_method == "env://" || options.init_method.empty();
  const bool launched = text_of(variables, "RANK") || text_of(variables, "WORLD_SIZE") ||
                        options.rank >= 0 || options.world_size >= 0;
  const auto tasks = launched ? std::nullopt : read_started_tasks(variables);
  if (by_environment && !launched && !tasks) return plan;  // Not launched: a world of one.
  if (tasks) {
    use(*tasks, plan.identity);
    plan.local_rank_known = tasks->local_rank && tasks->local_size;
    if (!tasks->job.empty()) plan.identity.run_id = tasks->job;
  } else {
    read_rank(variables, options, plan.identity);
    // If the options override the launcher's ranks, its LOCAL_RANK does not describe this world.
    const bool launchers_world = options.rank < 0 && options.world_size < 0;
    read_locality(launchers_world ? variables : Variables(), plan.identity);
    plan.local_rank_known = launchers_world && text_of(variables, "LOCAL_RANK") &&
                            text_of(variables, "LOCAL_WORLD_SIZE");
    read_attempt(variables, plan.identity);
  }
  const bool alone = plan.identity.world_size == 1 && !text_of(variables, "MASTER_ADDR");
  if (!by_environment) {
    plan.rendezvous = of_url(options.init_method);
  } else if (tasks) {
    plan.rendezvous = of_tasks(variables, *tasks);
  } else if (!alone) {
    plan.rendezvous = of_environment(variables);
  }
  if (plan.backend == "self" && plan.identity.world_size > 1) {
    throw_argument("the backend \"self\" is for a world of one, not of " +
                   std::to_string(plan.identity.world_size));
  }
  return plan;
}

}  // namespace ddprun::worker_sdk
