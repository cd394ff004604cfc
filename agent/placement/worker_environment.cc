#include "agent/placement/worker_environment.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "common/ports.h"
#include "common/text/figures.h"
#include "common/worker_link.h"

namespace ddprun::agent {
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
  const std::string own = facts.master_addr + " " + std::to_string(facts.master_port);
  const std::string& place = facts.meeting_place.empty() ? own : facts.meeting_place;
  for (const char c : facts.run_id + " " + place) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 16777619u;
  }
  variables.try_emplace("NCCL_RAS_ADDR", "localhost:" + std::to_string(kFirst + hash % kPorts));
}

// What the user has set stays. "=" means these names, not all that begin so.
void put_data_network(Variables& variables, const RankFacts& facts) {
  if (!facts.data_interface.empty()) {
    variables.try_emplace("GLOO_SOCKET_IFNAME", facts.data_interface);
  }
  if (!facts.data_interfaces.empty()) {
    variables.try_emplace("NCCL_SOCKET_IFNAME", "=" + facts.data_interfaces);
  }
}

}  // namespace

Environment worker_environment(const RankFacts& facts, const WorkerContext& context,
                               const Environment& parent) {
  Variables variables;
  for (const std::string& entry : parent) put(variables, entry);
  // Those of a worker which we are, under another ddprun.
  variables.erase("DDPRUN_PROGRESS");
  variables.erase("DDPRUN_STDIN");
  variables.erase("DDPRUN_WORKER");  // See child_start.h.
  variables.erase(worker_link::kVariable);
  variables.erase(kRelayVariable);
  put_ranks(variables, facts, context);
  put_elastic(variables, facts, context);
  put_ras(variables, facts);
  put_data_network(variables, facts);
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

Environment memory_variables(const std::string& base, std::uint64_t bytes) {
  return {"DDPRUN_MEMORY=" + base + "/own", "DDPRUN_MEMORY_SIZE=" + std::to_string(bytes),
          "DDPRUN_MEMORY_COPIES=" + base + "/copies"};
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

namespace {

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::optional<int> parse_number(std::string_view text) {
  const auto number = as_number<int>(text);
  return number >= 0 ? number : std::nullopt;
}

}  // namespace

std::vector<std::string> split_gpu_list(std::string_view value) {
  std::vector<std::string> gpus;
  for (std::size_t begin = 0; begin <= value.size();) {
    const std::size_t comma = std::min(value.find(',', begin), value.size());
    const std::string_view entry = trim(value.substr(begin, comma - begin));
    const bool named = entry.starts_with("GPU-") || entry.starts_with("MIG-");
    if (!named && !parse_number(entry)) break;
    gpus.emplace_back(entry);
    begin = comma + 1;
  }
  return gpus;
}

int visible_gpus(std::string_view value, int present) {
  std::set<std::string> seen;
  for (const std::string& gpu : split_gpu_list(value)) {
    const std::optional<int> number = parse_number(gpu);
    if (number && *number >= present) break;
    if (!seen.insert(number ? std::to_string(*number) : gpu).second) return 0;
  }
  return static_cast<int>(seen.size());
}

}  // namespace ddprun::agent
