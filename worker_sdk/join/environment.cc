#include "worker_sdk/join/environment.h"

#include <charconv>
#include <limits>

namespace ddprun::worker_sdk {
namespace {

constexpr int kWorldSizeMax = 1 << 20;

[[noreturn]] void throw_environment(const std::string& text) {
  throw Error(ErrorKind::bad_environment, {.operation = "reading the environment"}, text);
}

[[noreturn]] void throw_argument(const std::string& text) {
  throw Error(ErrorKind::bad_argument, {.operation = "ProcessGroup::init"}, text);
}

std::optional<std::string> text_of(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  if (found == variables.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

std::optional<int> parse(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// The variable's number; std::nullopt if the variable is not set.
std::optional<int> number_of(const Variables& variables, const std::string& name, int min,
                             int max) {
  const auto text = text_of(variables, name);
  if (!text) return std::nullopt;
  const auto value = parse(*text);
  if (!value || *value < min || *value > max) {
    throw_environment(name + "=" + *text + " is not a number from " + std::to_string(min) + " to " +
                      std::to_string(max));
  }
  return value;
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

std::string without_brackets(std::string host) {
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') {
    return host.substr(1, host.size() - 2);
  }
  return host;
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
  const auto port = colon == std::string::npos ? std::nullopt : parse(address.substr(colon + 1));
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
  const bool by_environment = options.init_method == "env://" || options.init_method.empty();
  const bool launched = text_of(variables, "RANK") || text_of(variables, "WORLD_SIZE") ||
                        options.rank >= 0 || options.world_size >= 0;
  if (by_environment && !launched) return plan;  // Not launched: a world of one.
  read_rank(variables, options, plan.identity);
  // If the options override the launcher's ranks, its LOCAL_RANK does not describe this world.
  const bool launchers_world = options.rank < 0 && options.world_size < 0;
  read_locality(launchers_world ? variables : Variables(), plan.identity);
  plan.local_rank_known =
      launchers_world && text_of(variables, "LOCAL_RANK") && text_of(variables, "LOCAL_WORLD_SIZE");
  read_attempt(variables, plan.identity);
  const bool alone = plan.identity.world_size == 1 && !text_of(variables, "MASTER_ADDR");
  if (!by_environment) {
    plan.rendezvous = of_url(options.init_method);
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
