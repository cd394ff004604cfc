#include "agent/placement/worker_environment.h"

#include <algorithm>
#include <catch2/catch.hpp>

namespace ddprun::agent {
namespace {

RankFacts second_node_rank() {
  return {.rank = 5,
          .local_rank = 1,
          .world_size = 8,
          .local_world_size = 4,
          .group_rank = 1,
          .group_world_size = 2,
          .role_rank = 5,
          .role_world_size = 8,
          .role = "trainer",
          .master_addr = "node-0",
          .master_port = 23456,
          .restart_count = 2,
          .max_restarts = 3,
          .run_id = "job7"};
}

std::string value(const Environment& environment, std::string_view name) {
  return std::string(find_variable(environment, name, "(unset)"));
}

const std::string kRas = "NCCL_RAS_ADDR=localhost:24056";

TEST_CASE("Environment: every variable of torchrun 2.14, a place for NCCL's RAS, and no other",
          "[environment]") {
  const WorkerContext context{.error_file = "/logs/error.json"};
  CHECK(worker_environment(second_node_rank(), context, {}) ==
        Environment{"GROUP_RANK=1",
                    "GROUP_WORLD_SIZE=2",
                    "LOCAL_RANK=1",
                    "LOCAL_WORLD_SIZE=4",
                    "MASTER_ADDR=node-0",
                    "MASTER_PORT=23456",
                    kRas,
                    "OMP_NUM_THREADS=1",
                    "RANK=5",
                    "ROLE_NAME=trainer",
                    "ROLE_RANK=5",
                    "ROLE_WORLD_SIZE=8",
                    "TORCHELASTIC_ERROR_FILE=/logs/error.json",
                    "TORCHELASTIC_MAX_RESTARTS=3",
                    "TORCHELASTIC_RESTART_COUNT=2",
                    "TORCHELASTIC_RUN_ID=job7",
                    "TORCHELASTIC_SIGNALS_TO_HANDLE=SIGTERM,SIGINT,SIGHUP,SIGQUIT",
                    "TORCHELASTIC_USE_AGENT_STORE=True",
                    "TORCH_NCCL_ASYNC_ERROR_HANDLING=1",
                    "WORLD_SIZE=8"});
}

TEST_CASE("Environment: the network for data, unless the user has chosen", "[environment]") {
  RankFacts facts = second_node_rank();
  facts.data_interface = "ib0";
  facts.data_interfaces = "ib0,ib1";
  const Environment chosen = worker_environment(facts, {}, {});
  CHECK(value(chosen, "GLOO_SOCKET_IFNAME") == "ib0");
  CHECK(value(chosen, "NCCL_SOCKET_IFNAME") == "=ib0,ib1");
  const Environment kept =
      worker_environment(facts, {}, {"GLOO_SOCKET_IFNAME=eth0", "NCCL_SOCKET_IFNAME=eth"});
  CHECK(value(kept, "GLOO_SOCKET_IFNAME") == "eth0");
  CHECK(value(kept, "NCCL_SOCKET_IFNAME") == "eth");
  facts.data_interfaces.clear();
  const Environment of_gloo = worker_environment(facts, {}, {});
  CHECK(value(of_gloo, "GLOO_SOCKET_IFNAME") == "ib0");
  CHECK(value(of_gloo, "NCCL_SOCKET_IFNAME") == value({}, "NCCL_SOCKET_IFNAME"));
}

TEST_CASE("Environment: each job has its RAS elsewhere, the same on all its nodes",
          "[environment]") {
  const auto ras = [](RankFacts facts, const Environment& parent = {}) {
    return value(worker_environment(facts, {}, parent), "NCCL_RAS_ADDR");
  };
  RankFacts other = second_node_rank();
  other.rank = 0;
  other.group_rank = 0;
  CHECK(ras(other) == ras(second_node_rank()));
  other.run_id = "job8";
  CHECK(ras(other) != ras(second_node_rank()));
  CHECK(ras(second_node_rank(), {"NCCL_RAS_ADDR=[::1]:9"}) == "[::1]:9");
  for (int port = 1; port < 2000; ++port) {
    other.master_port = port;
    const int at = std::stoi(ras(other).substr(std::string("localhost:").size()));
    REQUIRE((at >= 20000 && at < 28000));
  }
}

TEST_CASE("Environment: the parent's is passed on, and its ranks are overridden", "[environment]") {
  const Environment parent = {
      "PATH=/bin", "RANK=99", "EMPTY=", "WITH=equals=inside", "broken", "=x"};
  const Environment environment = worker_environment(second_node_rank(), {}, parent);
  CHECK(value(environment, "PATH") == "/bin");
  CHECK(value(environment, "RANK") == "5");
  CHECK(value(environment, "EMPTY") == "");
  CHECK(value(environment, "WITH") == "equals=inside");
  CHECK(std::count_if(environment.begin(), environment.end(),
                      [](const auto& entry) { return entry.starts_with("RANK="); }) == 1);
  CHECK(value(environment, "broken") == "(unset)");
}

TEST_CASE("Environment: ranks that share GPUs take turns, and NCCL is told to bear it",
          "[environment]") {
  RankFacts facts = second_node_rank();
  facts.local_rank = 3;
  const Environment parent = {"CUDA_VISIBLE_DEVICES=4,5", "NCCL_MAX_CTAS=7"};
  const Environment environment = worker_environment(facts, {.shared_gpus = 2}, parent);
  CHECK(value(environment, "CUDA_VISIBLE_DEVICES") == "5");
  CHECK(value(environment, "LOCAL_RANK") == "0");
  CHECK(value(environment, "NCCL_HOSTID") == "ddprun-job7-5");
  CHECK(value(environment, "NCCL_MULTI_RANK_GPU_ENABLE") == "1");
  CHECK(value(environment, "NCCL_MAX_CTAS") == "7");             // The user knows better.
  CHECK(value(environment, "NCCL_SOCKET_IFNAME") == "(unset)");  // There is another node.
}

TEST_CASE("Environment: threads that were asked for win over what is inherited", "[environment]") {
  const Environment parent = {"OMP_NUM_THREADS=9"};
  CHECK(value(worker_environment(second_node_rank(), {}, parent), "OMP_NUM_THREADS") == "9");
  CHECK(value(worker_environment(second_node_rank(), {.omp_threads = 4}, parent),
              "OMP_NUM_THREADS") == "4");
}

TEST_CASE("Environment: the token never reaches a worker", "[environment]") {
  const Environment parent = {"DDPRUN_TOKEN=secret", "DDPRUN_TOKEN_FILE=/t", "DDPRUN_TOKEN_FD=3",
                              "DDPRUN_AGENT_SOCKET=/s"};
  const WorkerContext context{.extra = {"DDPRUN_TOKEN_AGAIN=x", "DDPRUN_NEW=1"}};
  for (const std::string& entry : worker_environment(second_node_rank(), context, parent)) {
    CHECK(!entry.starts_with("DDPRUN_TOKEN"));
  }
  CHECK(value(worker_environment(second_node_rank(), context, parent), "DDPRUN_NEW") == "1");
}

TEST_CASE("Environment: an outer run's progress page is not its inner run's workers'",
          "[environment]") {
  const Environment parent = {"DDPRUN_PROGRESS=/outer", "DDPRUN_WORKER_LINK=3", "DDPRUN_WORKER=7.1",
                              "DDPRUN_RELAY=7 n h always"};
  CHECK(value(worker_environment(second_node_rank(), {}, parent), "DDPRUN_RELAY") == "(unset)");
  CHECK(value(worker_environment(second_node_rank(), {}, parent), "DDPRUN_WORKER") == "(unset)");
  CHECK(value(worker_environment(second_node_rank(), {}, parent), "DDPRUN_WORKER_LINK") ==
        "(unset)");
  CHECK(value(worker_environment(second_node_rank(), {}, parent), "DDPRUN_PROGRESS") == "(unset)");
  const WorkerContext watched{.extra = {"DDPRUN_PROGRESS=/own"}};
  CHECK(value(worker_environment(second_node_rank(), watched, parent), "DDPRUN_PROGRESS") ==
        "/own");
}

TEST_CASE("Environment: OMP_NUM_THREADS is set only where nobody chose it", "[environment]") {
  RankFacts alone;
  CHECK(value(worker_environment(alone, {}, {}), "OMP_NUM_THREADS") == "(unset)");
  CHECK(value(worker_environment(alone, {}, {"OMP_NUM_THREADS=6"}), "OMP_NUM_THREADS") == "6");
  CHECK(value(worker_environment(second_node_rank(), {}, {"OMP_NUM_THREADS=6"}),
              "OMP_NUM_THREADS") == "6");
  WorkerContext one_of_two_nodes_here;
  one_of_two_nodes_here.shares_machine = true;
  CHECK(value(worker_environment(alone, one_of_two_nodes_here, {}), "OMP_NUM_THREADS") == "1");
}

TEST_CASE("Environment: NCCL's error handling is the parent's choice", "[environment]") {
  const Environment environment =
      worker_environment(second_node_rank(), {}, {"TORCH_NCCL_ASYNC_ERROR_HANDLING=0"});
  CHECK(value(environment, "TORCH_NCCL_ASYNC_ERROR_HANDLING") == "0");
}

TEST_CASE("Environment: a virtual local rank is 0 and sees its own GPU alone", "[environment]") {
  const WorkerContext context{.virtual_local_rank = true};
  const auto gpu = [&](const Environment& parent) {
    const Environment environment = worker_environment(second_node_rank(), context, parent);
    CHECK(value(environment, "LOCAL_RANK") == "0");
    return value(environment, "CUDA_VISIBLE_DEVICES");
  };
  CHECK(gpu({}) == "1");
  CHECK(gpu({"CUDA_VISIBLE_DEVICES=4,6,7"}) == "6");
  CHECK(gpu({"CUDA_VISIBLE_DEVICES=GPU-aa,GPU-bb"}) == "GPU-bb");
}

TEST_CASE("Environment: a terminal's width is told only if there is one", "[environment]") {
  CHECK(value(worker_environment({}, {}, {}), "DDPRUN_TERMINAL_COLUMNS") == "(unset)");
  CHECK(value(worker_environment({}, {.terminal_columns = 132}, {}), "DDPRUN_TERMINAL_COLUMNS") ==
        "132");
}

TEST_CASE("Environment: a worker with a device of its own sees that one alone, as its GPU 0",
          "[environment]") {
  const WorkerContext context{.device = "MIG-1a"};
  const auto environment =
      worker_environment(second_node_rank(), context, {"CUDA_VISIBLE_DEVICES=0,1"});
  CHECK(value(environment, "CUDA_VISIBLE_DEVICES") == "MIG-1a");
  CHECK(value(environment, "LOCAL_RANK") == "0");
  CHECK(value(environment, "RANK") == "5");
}

}  // namespace
}  // namespace ddprun::agent
