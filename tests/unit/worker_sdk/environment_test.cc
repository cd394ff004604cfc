#include "worker_sdk/join/environment.h"

#include <catch2/catch.hpp>

namespace ddprun::worker_sdk {
namespace {

const Variables kLaunched = {{"RANK", "5"},
                             {"WORLD_SIZE", "8"},
                             {"LOCAL_RANK", "1"},
                             {"LOCAL_WORLD_SIZE", "4"},
                             {"GROUP_RANK", "1"},
                             {"MASTER_ADDR", "node-a"},
                             {"MASTER_PORT", "29500"},
                             {"TORCHELASTIC_RESTART_COUNT", "2"},
                             {"TORCHELASTIC_RUN_ID", "job-7"},
                             {"TORCHELASTIC_USE_AGENT_STORE", "True"}};

Variables with(const std::string& name, const std::string& value) {
  Variables variables = kLaunched;
  variables[name] = value;
  return variables;
}

Variables without(const std::string& name) {
  Variables variables = kLaunched;
  variables.erase(name);
  return variables;
}

InitOptions method(const std::string& url, int rank = -1, int world_size = -1) {
  InitOptions options;
  options.init_method = url;
  options.rank = rank;
  options.world_size = world_size;
  return options;
}

// "kind: text" of what read_environment() throws.
std::string refusal(const Variables& variables, const InitOptions& options = {}) {
  try {
    read_environment(variables, options);
  } catch (const Error& error) {
    return error.code().message() + ": " + error.text();
  }
  return "accepted";
}

TEST_CASE("Environment: everything that torchrun sets is read", "[environment]") {
  const Plan plan = read_environment(kLaunched, {});
  CHECK(plan.identity.rank == 5);
  CHECK(plan.identity.world_size == 8);
  CHECK(plan.identity.local_rank == 1);
  CHECK(plan.identity.local_world_size == 4);
  CHECK(plan.identity.group_rank == 1);
  CHECK(plan.identity.restart_count == 2);
  CHECK(plan.identity.run_id == "job-7");
  CHECK(plan.local_rank_known);
  CHECK(plan.rendezvous.kind == Rendezvous::Kind::kTcp);
  CHECK(plan.rendezvous.host == "node-a");
  CHECK(plan.rendezvous.port == 29500);
  CHECK_FALSE(plan.rendezvous.hosted_by_rank_0);
  CHECK(plan.backend == "auto");
}

TEST_CASE("Environment: rank 0 hosts the store unless the agent says that it does",
          "[environment]") {
  for (const Variables& variables :
       {without("TORCHELASTIC_USE_AGENT_STORE"), with("TORCHELASTIC_USE_AGENT_STORE", "False"),
        with("TORCHELASTIC_USE_AGENT_STORE", "1")}) {
    CHECK(read_environment(variables, {}).rendezvous.hosted_by_rank_0);
  }
  CHECK(read_environment(kLaunched, method("tcp://host:1")).rendezvous.hosted_by_rank_0);
}

TEST_CASE("Environment: without a launcher the job is a world of one", "[environment]") {
  const Plan plan = read_environment({{"MASTER_ADDR", "left over"}}, {});
  CHECK(plan.rendezvous.kind == Rendezvous::Kind::kAlone);
  CHECK(plan.identity.world_size == 1);
  CHECK(plan.identity.run_id == "none");
  CHECK(read_environment({{"RANK", "0"}, {"WORLD_SIZE", "1"}}, {}).rendezvous.kind ==
        Rendezvous::Kind::kAlone);
}

TEST_CASE("Environment: what is missing or not a number is named", "[environment]") {
  const std::string environment = "bad environment: ";
  CHECK(refusal(without("RANK")).starts_with(environment + "RANK is not set"));
  CHECK(refusal(without("WORLD_SIZE")).starts_with(environment + "WORLD_SIZE is not set"));
  CHECK(refusal(without("MASTER_ADDR")).starts_with(environment + "MASTER_ADDR is not set"));
  CHECK(refusal(without("MASTER_PORT")).starts_with(environment + "MASTER_PORT is not set"));
  CHECK(refusal(with("RANK", "")).starts_with(environment + "RANK is not set"));
  for (const char* value : {"x", "1x", " 1", "-1", "1.0", "99999999999999999999", "0x1"}) {
    CAPTURE(value);
    CHECK(refusal(with("RANK", value)).starts_with(environment + "RANK=" + value));
    CHECK(refusal(with("WORLD_SIZE", value)).starts_with(environment + "WORLD_SIZE=" + value));
    CHECK(refusal(with("LOCAL_RANK", value)).starts_with(environment + "LOCAL_RANK=" + value));
    CHECK(refusal(with("MASTER_PORT", value)).starts_with(environment + "MASTER_PORT=" + value));
  }
  CHECK(refusal(with("MASTER_PORT", "65536")).starts_with(environment + "MASTER_PORT=65536"));
  CHECK(refusal(with("WORLD_SIZE", "0")).starts_with(environment + "WORLD_SIZE=0"));
}

TEST_CASE("Environment: contradictions are named", "[environment]") {
  CHECK(refusal(with("RANK", "8")) == "bad environment: RANK=8 is not below WORLD_SIZE=8");
  CHECK(refusal(with("LOCAL_RANK", "4")) ==
        "bad environment: LOCAL_RANK=4 is not below LOCAL_WORLD_SIZE=4");
  CHECK(refusal(with("LOCAL_WORLD_SIZE", "9")) ==
        "bad environment: LOCAL_WORLD_SIZE=9 is above the world size of 8");
  CHECK(refusal(kLaunched, method("env://", 9)) ==
        "bad argument: RANK=9 is not below WORLD_SIZE=8");
}

TEST_CASE("Environment: the range of ports is read, or refused", "[environment]") {
  CHECK(read_environment(kLaunched, {}).ports.is_any());
  CHECK(read_environment(with("DDPRUN_PORT_RANGE", "7-9"), {}).ports == PortRange{7, 9});
  CHECK(refusal(with("DDPRUN_PORT_RANGE", "9-7")) ==
        "bad environment: DDPRUN_PORT_RANGE=9-7 is no range of ports such as 29500-29599");
}

TEST_CASE("Environment: the place of relayed streams is as the agent writes it", "[environment]") {
  const RelayPlace place{.port = 7, .nonce = "n", .node = "host/1.ab", .always = true};
  CHECK(read_environment(with("DDPRUN_RELAY", to_text(place)), {}).relay == place);
  CHECK(read_environment(kLaunched, {}).relay.port == 0);
  for (const char* text : {"7", "7 n", "7 n h", "7 n h never", "0 n h always", "7  h always",
                           "7 n h always ", "70000 n h needed", "x n h needed"}) {
    CAPTURE(text);
    CHECK(refusal(with("DDPRUN_RELAY", text)) ==
          "bad environment: DDPRUN_RELAY is not as ddprun sets it");
  }
}

TEST_CASE("Environment: options go before RANK and WORLD_SIZE", "[environment]") {
  const Plan plan = read_environment(kLaunched, method("tcp://[::1]:80", 0, 2));
  CHECK(plan.identity.rank == 0);
  CHECK(plan.identity.world_size == 2);
  CHECK(plan.rendezvous.host == "::1");
  CHECK(plan.rendezvous.port == 80);
  CHECK_FALSE(plan.local_rank_known);
  CHECK(plan.identity.restart_count == 2);
}

TEST_CASE("Environment: a method that cannot be understood is named", "[environment]") {
  for (const char* url : {"tcp://", "tcp://host", "tcp://:1", "tcp://host:0", "tcp://host:65536",
                          "tcp://host:port", "file://", "file://relative", "mpi://", "host:1"}) {
    CAPTURE(url);
    const std::string text = refusal({}, method(url, 0, 2));
    CHECK(text.starts_with("bad argument: init_method \"" + std::string(url) + "\""));
  }
  CHECK(read_environment({}, method("file:///tmp/x", 0, 2)).rendezvous.path == "/tmp/x");
  CHECK(refusal({}, method("tcp://host:1")).starts_with("bad environment: RANK is not set"));
}

TEST_CASE("Environment: DDPRUN_BACKEND goes before the option", "[environment]") {
  InitOptions options;
  options.backend = "shm";
  CHECK(read_environment(kLaunched, options).backend == "shm");
  CHECK(read_environment(with("DDPRUN_BACKEND", "gloo"), options).backend == "gloo");
  CHECK(refusal(with("DDPRUN_BACKEND", "mpi")).starts_with("bad environment: DDPRUN_BACKEND"));
  options.backend = "mpi";
  CHECK(refusal(kLaunched, options).starts_with("bad argument: \"mpi\" is none of"));
  options.backend = "self";
  CHECK(refusal(kLaunched, options).starts_with("bad argument: the backend \"self\""));
}

TEST_CASE("Environment: what is nccl's own reaches its plan", "[environment]") {
  InitOptions options;
  options.nccl = {.device = 3, .max_ctas = 8, .may_shrink = true};
  const GpuRequest request = read_environment(kLaunched, options).gpu;
  CHECK(request.device == 3);
  CHECK(request.max_ctas == 8);
  CHECK(request.may_shrink);
  CHECK(read_environment(with("DDPRUN_NCCL_MAX_CTAS", "4"), options).gpu.max_ctas == 4);
}

TEST_CASE("Environment: our interface variable goes before Gloo's", "[environment]") {
  CHECK(read_environment(with("GLOO_SOCKET_IFNAME", "eth0"), {}).interface == "eth0");
  Variables both = with("GLOO_SOCKET_IFNAME", "eth0");
  both["DDPRUN_SOCKET_IFNAME"] = "ib0";
  CHECK(read_environment(both, {}).interface == "ib0");
}

}  // namespace
}  // namespace ddprun::worker_sdk
