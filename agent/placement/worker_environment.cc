#include "agent/placement/worker_environment.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <thread>

#include "agent/placement/gpus.h"
#include "agent/process/cgroup.h"
#include "common/assert.h"
#include "common/worker_link.h"

namespace ddprun::agent {
namespace {

Failure bad_request(std::string_view request, const std::string& why) {
  return {Errc::kBadOption, "--nproc-per-node " + std::string(request) + ": " + why};
}

int usable_gpus(const PlacementFacts& facts) {
  if (facts.slices) return *facts.slices;
  return facts.cuda_visible_devices ? visible_gpus(*facts.cuda_visible_devices, facts.gpus)
                                    : facts.gpus;
}

std::string processors_text(int count) {
  return std::to_string(count) + (count == 1 ? " processor" : " processors");
}

std::string quota_text(double quota) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%g", std::round(quota * 100) / 100);
  return std::string("a cgroup's quota is ") + text.data() + " (docker run --cpus, a pod's limit)";
}

std::string why_no_gpu(const PlacementFacts& facts) {
  if (facts.gpus == 0) return "no NVIDIA GPU on this node; try auto, cpu or a number";
  return "CUDA_VISIBLE_DEVICES=" + facts.cuda_visible_devices.value_or("") + " hides all " +
         std::to_string(facts.gpus) + " GPUs of this node";
}

}  // namespace

int processors_for_workers(const PlacementFacts& facts) {
  if (!facts.quota || *facts.quota >= facts.cpus) return facts.cpus;
  return std::max(1, static_cast<int>(*facts.quota));
}

std::vector<std::string> count_warnings(std::string_view request, int workers,
                                        const PlacementFacts& facts, bool by_slurm) {
  std::vector<std::string> warnings;
  const int usable = processors_for_workers(facts);
  const std::string count = std::to_string(workers) + (workers == 1 ? " worker" : " workers");
  const bool by_processors = request == "cpu" || (request == "auto" && usable_gpus(facts) == 0);
  if (usable < facts.cpus && (by_processors || workers > usable)) {
    warnings.push_back(count + " on " + processors_text(usable) + " of " +
                       std::to_string(facts.cpus) + ": " + quota_text(*facts.quota));
  } else if (by_slurm && facts.cpus < facts.machine_cpus && workers > facts.cpus) {
    warnings.push_back(count + " on " + processors_text(facts.cpus) + ": Slurm gave this task " +
                       std::to_string(facts.cpus) + " of " + std::to_string(facts.machine_cpus) +
                       "; give srun --cpus-per-task, or sbatch --exclusive");
  }
  return warnings;
}

// Grows the set until the kernel's own mask fits.
int usable_processors() {
  for (int bits = 1024; bits <= 1 << 20; bits *= 2) {
    cpu_set_t* set = CPU_ALLOC(bits);
    const std::size_t bytes = CPU_ALLOC_SIZE(bits);
    const bool ok = ::sched_getaffinity(0, bytes, set) == 0;
    const int count = ok ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (ok) return count;
  }
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

Result<int> workers_per_node(std::string_view request, const PlacementFacts& facts) {
  const int gpus = usable_gpus(facts);
  if (request == "auto") return gpus > 0 ? gpus : processors_for_workers(facts);
  if (request == "cpu") return processors_for_workers(facts);
  if (request == "gpu") {
    if (gpus > 0) return gpus;
    return bad_request(request, why_no_gpu(facts));
  }
  int number = 0;
  const char* const last = request.data() + request.size();
  // NOLINTNEXTLINE(bugprone-suspicious-stringview-data-usage): from_chars takes both ends.
  const auto [end, error] = std::from_chars(request.data(), last, number);
  if (error != std::errc() || end != last)
    return bad_request(request, "give a number, auto, gpu or cpu");
  if (number < 1 || number > kWorkersPerNodeMax) {
    return bad_request(request, "give 1 to " + std::to_string(kWorkersPerNodeMax) + " workers");
  }
  return number;
}

PlacementFacts read_placement_facts(const std::string& root) {
  PlacementFacts facts;
  facts.cpus = usable_processors();
  facts.quota = processor_quota();
  facts.machine_cpus = static_cast<int>(::sysconf(_SC_NPROCESSORS_ONLN));
  if (const char* visible = std::getenv("CUDA_VISIBLE_DEVICES"))
    facts.cuda_visible_devices = visible;
  const std::vector<Gpu> gpus = find_gpus(root);
  facts.gpus = static_cast<int>(gpus.size());
  const auto is_slice = [](const Gpu& gpu) { return gpu.is_slice; };
  if (std::any_of(gpus.begin(), gpus.end(), is_slice)) {
    facts.slices = static_cast<int>(visible_among(gpus, facts.cuda_visible_devices).size());
  }
  return facts;
}

namespace {

template <class T>
std::vector<T> slice(const std::vector<T>& all, int index, int workers) {
  if (all.empty()) return {};
  DDPRUN_ASSERT(index >= 0 && std::ssize(all) >= std::ptrdiff_t{index + 1} * workers);
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(index) * workers;
  return {begin, begin + workers};
}

}  // namespace

WorkerPlacement WorkerPlacement::of_node(int index, int workers) const {
  return {.processors = slice(processors, index, workers),
          .omp_threads = slice(omp_threads, index, workers),
          .devices = slice(devices, index, workers),
          .shared_gpus = shared_gpus};
}

namespace {

using Variables = std::map<std::string, std::string, std::less<>>;

constexpr std::string_view kSecretPrefix = "DDPRUN_TOKEN";

void put(Variables& variables, std::string_view entry) {
  const std::size_t equals = entry.find('=');
  if (equals == std::string_view::npos || equals == 0) return;
  variables.insert_or_assign(std::string(entry.substr(0, equals)),
                             std::string(entry.substr(equals + 1)));
}

void put_ranks(Variables& variables, const RankFacts& facts, const WorkerContext& context) {
  variables["RANK"] = std::to_string(facts.rank);
  variables["LOCAL_RANK"] = context.virtual_local_rank ? "0" : std::to_string(facts.local_rank);
  variables["WORLD_SIZE"] = std::to_string(facts.world_size);
  variables["LOCAL_WORLD_SIZE"] = std::to_string(facts.local_world_size);
  variables["GROUP_RANK"] = std::to_string(facts.group_rank);
  variables["GROUP_WORLD_SIZE"] = std::to_string(facts.group_world_size);
  variables["ROLE_RANK"] = std::to_string(facts.role_rank);
  variables["ROLE_WORLD_SIZE"] = std::to_string(facts.role_world_size);
  variables["ROLE_NAME"] = facts.role;
  variables["MASTER_ADDR"] = facts.master_addr;
  variables["MASTER_PORT"] = std::to_string(facts.master_port);
}

void put_elastic(Variables& variables, const RankFacts& facts, const WorkerContext& context) {
  variables["TORCHELASTIC_RESTART_COUNT"] = std::to_string(facts.restart_count);
  variables["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(facts.max_restarts);
  variables["TORCHELASTIC_RUN_ID"] = facts.run_id;
  variables["TORCHELASTIC_USE_AGENT_STORE"] =
      "True";  // As Python prints it: workers compare the text.
  variables["TORCHELASTIC_ERROR_FILE"] = context.error_file;
  variables["TORCHELASTIC_SIGNALS_TO_HANDLE"] = context.signals_to_handle;
  variables.try_emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
}

// The one GPU that the worker is to see, in the parent's own numbering.
void put_virtual_gpu(Variables& variables, int local_rank) {
  const auto visible = variables.find("CUDA_VISIBLE_DEVICES");
  std::string gpu = std::to_string(local_rank);
  if (visible != variables.end()) {
    const std::vector<std::string> gpus = split_gpu_list(visible->second);
    if (static_cast<std::size_t>(local_rank) < gpus.size())
      gpu = gpus[static_cast<std::size_t>(local_rank)];
  }
  variables["CUDA_VISIBLE_DEVICES"] = gpu;
}

// Several ranks on one GPU. NCCL before 2.30 refuses that within one host, so each rank claims to
// be a host of its own and they talk over sockets; from 2.30 on it has a switch. What the user has
// set stays.
void put_shared_gpu(Variables& variables, const RankFacts& facts, int gpus) {
  put_virtual_gpu(variables, facts.local_rank % gpus);
  variables["LOCAL_RANK"] = "0";
  variables.try_emplace("NCCL_HOSTID", "ddprun-" + facts.run_id + "-" + std::to_string(facts.rank));
  variables.try_emplace("NCCL_MULTI_RANK_GPU_ENABLE", "1");
  variables.try_emplace("NCCL_NET", "Socket");
  variables.try_emplace("NCCL_IB_DISABLE", "1");
  if (facts.group_world_size == 1) variables.try_emplace("NCCL_SOCKET_IFNAME", "lo");
  variables.try_emplace("NCCL_MAX_CTAS", "2");
  variables.try_emplace("NCCL_MIN_CTAS", "1");
  variables.try_emplace("NCCL_NVLS_ENABLE", "0");
  variables.try_emplace("NCCL_MNNVL_ENABLE", "0");
  variables.try_emplace("NCCL_RAS_ENABLE", "0");
}

// Where NCCL's RAS listens, on each node: one place for each job, so that two on a node do not
// share NCCL's own (28028) or each other's. Below the ports that systems hand out by themselves.
void put_ras(Variables& variables, const RankFacts& facts) {
  constexpr std::uint32_t kFirst = 20'000, kPorts = 8'000;
  std::uint32_t hash = 2166136261u;  // FNV-1a: the same on all nodes, and in any build.
  for (const char c :
       facts.run_id + " " + facts.master_addr + " " + std::to_string(facts.master_port)) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  }
  variables.try_emplace("NCCL_RAS_ADDR", "localhost:" + std::to_string(kFirst + hash % kPorts));
}

}  // namespace

Environment worker_environment(const RankFacts& facts, const WorkerContext& context,
                               const Environment& parent) {
  Variables variables;
  for (const std::string& entry : parent) put(variables, entry);
  // Those of a worker which we are, under another ddprun.
  variables.erase("DDPRUN_PROGRESS");
  variables.erase("DDPRUN_WORKER");  // See process_host.h.
  variables.erase(worker_link::kVariable);
  put_ranks(variables, facts, context);
  put_elastic(variables, facts, context);
  put_ras(variables, facts);
  const bool shared = facts.local_world_size > 1 || context.shares_machine;
  if (shared) variables.try_emplace("OMP_NUM_THREADS", "1");
  if (context.virtual_local_rank) put_virtual_gpu(variables, facts.local_rank);
  if (context.shared_gpus > 0) put_shared_gpu(variables, facts, context.shared_gpus);
  if (!context.device.empty()) {
    variables["CUDA_VISIBLE_DEVICES"] = context.device;
    variables["LOCAL_RANK"] = "0";
  }
  if (context.omp_threads > 0) variables["OMP_NUM_THREADS"] = std::to_string(context.omp_threads);
  if (context.terminal_columns > 0) {
    variables["DDPRUN_TERMINAL_COLUMNS"] = std::to_string(context.terminal_columns);
  }
  for (const std::string& entry : context.extra) put(variables, entry);
  std::erase_if(variables, [](const auto& v) { return v.first.starts_with(kSecretPrefix); });

  Environment environment;
  environment.reserve(variables.size());
  for (const auto& [name, value] : variables) environment.push_back(name + "=" + value);
  return environment;
}

std::string_view find_variable(const Environment& environment, std::string_view name,
                               std::string_view fallback) {
  for (const std::string_view entry : environment) {
    if (entry.size() > name.size() && entry.starts_with(name) && entry[name.size()] == '=') {
      return entry.substr(name.size() + 1);
    }
  }
  return fallback;
}

}  // namespace ddprun::agent
