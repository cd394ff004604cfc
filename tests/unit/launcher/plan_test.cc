#include "launcher/plan/plan.h"

#include <catch2/catch.hpp>

#include "tests/support/command_line.h"

namespace ddprun::launcher {
namespace {

MachineFacts here() {
  MachineFacts facts;
  facts.host_name = "node0";
  facts.own_addresses = {"10.0.0.1", "192.168.7.1", "fd00::1"};
  return facts;
}

MachineFacts here_with_token() {
  MachineFacts facts = here();
  facts.token_in_environment = true;
  return facts;
}

// The plan as one line, so that a case reads as "this command line does that".
std::string text_of(const RendezvousPlan& plan) {
  if (plan.mode == RendezvousPlan::Mode::kStandalone) return "standalone at " + plan.node_address;
  if (plan.mode == RendezvousPlan::Mode::kJoin) return "join " + to_string(plan.endpoint);
  const char* if_taken[] = {"any port", "join", "fail"};
  return "host " + to_string(plan.endpoint) + " on " +
         (plan.listen_host.empty() ? "all" : plan.listen_host) + ", if taken " +
         if_taken[static_cast<int>(plan.if_taken)];
}

std::string planned(const std::string& line, const MachineFacts& facts = here_with_token()) {
  const Result<RendezvousPlan> plan = make_plan(options_of(line + " train"), facts);
  return plan ? text_of(*plan) : "error: " + plan.error().context;
}

RendezvousPlan plan_of(const std::string& line, const MachineFacts& facts = here_with_token()) {
  return make_plan(options_of(line + " train"), facts).value();
}

TEST_CASE("RendezvousPlan: a run that nobody else can join stays in this process", "[plan]") {
  CHECK(planned("") == "standalone at 127.0.0.1");
  CHECK(planned("--standalone") == "standalone at 127.0.0.1");
  CHECK(planned("--nnodes 1 --nproc-per-node 4") == "standalone at 127.0.0.1");
  CHECK(planned("--local-nodes 1") == "standalone at 127.0.0.1");
  CHECK(planned("--rdzv-backend c10d --rdzv-endpoint localhost:0") == "standalone at 127.0.0.1");
  CHECK(planned("--node-rank 0 --nnodes 1") == "standalone at 127.0.0.1");
  CHECK_FALSE(plan_of("").run_id);
  CHECK(plan_of("--rdzv-id seven").run_id == "seven");
  CHECK(plan_of("").token == RendezvousPlan::Token::kNone);
}

TEST_CASE("RendezvousPlan: a lone node keeps the master port it asked for", "[plan]") {
  CHECK(plan_of("--master-port 29501").store_port == 29501);
  CHECK(plan_of("--master-port 29501").mode == RendezvousPlan::Mode::kStandalone);
  CHECK_FALSE(plan_of("").store_port);
  CHECK(planned("--master-addr 10.0.0.1") == "standalone at 10.0.0.1");
  const RendezvousPlan elsewhere = plan_of("--master-addr 10.0.0.9");
  CHECK(text_of(elsewhere) == "standalone at 127.0.0.1");
  REQUIRE(elsewhere.warnings.size() == 1);
  CHECK(elsewhere.warnings[0].starts_with("--master-addr 10.0.0.9 is not this machine"));
}

TEST_CASE("RendezvousPlan: standalone overrides an endpoint and says so", "[plan]") {
  const RendezvousPlan plan = plan_of("--standalone --rdzv-endpoint node7:29400");
  CHECK(plan.mode == RendezvousPlan::Mode::kStandalone);
  REQUIRE(plan.warnings.size() == 1);
  CHECK(plan.warnings[0].find("--rdzv-endpoint node7:29400 is not used") != std::string::npos);
}

TEST_CASE("RendezvousPlan: local nodes meet on loopback", "[plan]") {
  CHECK(planned("--local-nodes 3") == "host 127.0.0.1:0 on 127.0.0.1, if taken any port");
  const RendezvousPlan plan = plan_of("--local-nodes 3");
  CHECK(plan.local_nodes == 3);
  CHECK(plan.nnodes == NodeRange{3, 3});
  CHECK_FALSE(plan.others_may_come);
  CHECK_FALSE(plan.run_id);
  CHECK(plan.local_host == "127.0.0.1");
  CHECK(plan_of("--local-nodes 3", here()).token == RendezvousPlan::Token::kMint);
  CHECK(plan_of("--local-nodes 3 --nnodes 1:2").nnodes == NodeRange{1, 2});
  CHECK(planned("--local-nodes 3 --nnodes 2") ==
        "host 127.0.0.1:0 on 127.0.0.1, if taken any port");
}

TEST_CASE("RendezvousPlan: local nodes that wait for other machines listen to them", "[plan]") {
  CHECK(planned("--local-nodes 2 --nnodes 3") == "host 10.0.0.1:29400 on all, if taken any port");
  CHECK(plan_of("--local-nodes 2 --nnodes 3").others_may_come);
}

TEST_CASE("RendezvousPlan: several nodes and no endpoint: this one hosts it", "[plan]") {
  CHECK(planned("--nnodes 2") == "host 10.0.0.1:29400 on all, if taken any port");
  CHECK(planned("--nnodes 1:4") == "host 10.0.0.1:29400 on all, if taken any port");
  CHECK(planned("--nnodes 2 --local-addr 192.168.7.1") ==
        "host 192.168.7.1:29400 on 192.168.7.1, if taken any port");
  CHECK(planned("--nnodes 2 --local-addr node0-ib") ==
        "host node0-ib:29400 on all, if taken any port");
  const RendezvousPlan plan = plan_of("--nnodes 2", here());
  CHECK(plan.token == RendezvousPlan::Token::kMint);
  CHECK(plan.run_id == "none");
  CHECK(plan.local_host == "127.0.0.1");
  CHECK(plan.node_address == "10.0.0.1");
  MachineFacts unconnected = here();
  unconnected.own_addresses.clear();
  CHECK(planned("--nnodes 2", unconnected) == "host node0:29400 on all, if taken any port");
}

TEST_CASE("RendezvousPlan: --local-addr is an address of this machine, and one that others reach",
          "[plan]") {
  CHECK(planned("--nnodes 2 --rdzv-endpoint 10.0.0.9 --local-addr 192.0.2.77") ==
        "error: --local-addr 192.0.2.77 is no address of this machine (it has 10.0.0.1, "
        "192.168.7.1, fd00::1); if it leads here from outside, give it as --advertise-addr");
  CHECK(planned("--local-addr 192.0.2.77").starts_with("error: --local-addr 192.0.2.77 is no "));
  const auto warning = [](const std::string& line, const MachineFacts& facts = here_with_token()) {
    const RendezvousPlan plan = plan_of(line, facts);
    return plan.warnings.empty() ? "" : plan.warnings.front();
  };
  CHECK(warning("--nnodes 2 --rdzv-endpoint 10.0.0.9 --local-addr 127.0.0.1") ==
        "--local-addr 127.0.0.1 is each machine's own loopback address: workers on others do not "
        "reach this node there; it has 10.0.0.1, 192.168.7.1, fd00::1");
  CHECK(warning("--nnodes 2 --rdzv-endpoint 10.0.0.1 --local-addr 127.0.0.1")
            .starts_with("--local-addr 127.0.0.1 is each "));
  CHECK(warning("--nnodes 2 --rdzv-endpoint 10.0.0.9 --advertise-addr 127.0.0.1")
            .starts_with("--advertise-addr 127.0.0.1 is each "));
  CHECK(warning("--nnodes 2 --rdzv-endpoint localhost:5 --local-addr 127.0.0.1").empty());
  CHECK(warning("--local-addr 127.0.0.1").empty());
  MachineFacts named = here_with_token();
  named.socket_interface = "ib7";
  named.interfaces = {"eth0", "lo"};
  CHECK(warning("--nnodes 2", named) ==
        "DDPRUN_SOCKET_IFNAME=ib7: this machine has no such interface; it has eth0, lo");
  named.socket_interface = "eth0";
  CHECK(warning("--nnodes 2", named).empty());
}

TEST_CASE("RendezvousPlan: networks are offered where one may be chosen for data", "[plan]") {
  CHECK(plan_of("--nnodes 2").offers_networks);
  CHECK(plan_of("--nnodes 2 --rdzv-endpoint 10.0.0.9").offers_networks);
  CHECK_FALSE(plan_of("").offers_networks);
  CHECK_FALSE(plan_of("--local-nodes 2").offers_networks);
  CHECK_FALSE(plan_of("--nnodes 2 --one-port").offers_networks);
  CHECK_FALSE(plan_of("--nnodes 2 --local-addr 192.168.7.1").offers_networks);
  CHECK_FALSE(plan_of("--nnodes 2 --advertise-addr 192.0.2.1").offers_networks);
  MachineFacts named = here_with_token();
  named.socket_interface = "ib0";
  CHECK(plan_of("--nnodes 2 --local-addr 192.168.7.1", named).offers_networks);
}

TEST_CASE("RendezvousPlan: who the endpoint names hosts it, unless somebody does already",
          "[plan]") {
  CHECK(planned("--nnodes 2 --rdzv-endpoint node0") == "host node0:29400 on all, if taken join");
  CHECK(planned("--nnodes 2 --rdzv-endpoint NODE0:1") == "host NODE0:1 on all, if taken join");
  CHECK(planned("--nnodes 2 --rdzv-endpoint 10.0.0.1:5") ==
        "host 10.0.0.1:5 on 10.0.0.1, if taken join");
  CHECK(planned("--nnodes 2 --rdzv-endpoint [fd00::1]:5") ==
        "host [fd00::1]:5 on fd00::1, if taken join");
  CHECK(planned("--nnodes 2 --rdzv-endpoint localhost:5") ==
        "host localhost:5 on 127.0.0.1, if taken join");
  CHECK(planned("--nnodes 2 --rdzv-endpoint [::1]:5") == "host [::1]:5 on ::1, if taken join");
  CHECK(planned("--nnodes 2 --rdzv-endpoint 0.0.0.0:5") == "host 10.0.0.1:5 on all, if taken join");
  CHECK(planned("--nnodes 2 --rdzv-endpoint 10.0.0.2:5") == "join 10.0.0.2:5");
  CHECK(planned("--nnodes 2 --rdzv-endpoint node01:5") == "join node01:5");
  CHECK(planned("--nnodes 2 --rdzv-endpoint 127.evil.example:5") == "join 127.evil.example:5");
  CHECK(planned("--rdzv-endpoint node7") == "join node7:29400");
}

TEST_CASE("RendezvousPlan: a name is this machine's if it resolves to its address", "[plan]") {
  MachineFacts facts = here_with_token();
  const Options options = options_of("--nnodes 2 --rdzv-endpoint head.example:5 train");
  CHECK(name_to_resolve(options) == "head.example");
  facts.endpoint_addresses = {"10.9.9.9", "192.168.7.1"};
  CHECK(text_of(make_plan(options, facts).value()) == "host head.example:5 on all, if taken join");
  facts.endpoint_addresses = {"127.0.1.1"};
  CHECK(text_of(make_plan(options, facts).value()) == "host head.example:5 on all, if taken join");
  facts.endpoint_addresses = {"10.9.9.9"};
  CHECK(text_of(make_plan(options, facts).value()) == "join head.example:5");
  for (const char* known : {"localhost", "127.0.0.1", "10.9.9.9", "[fd00::9]:3"}) {
    INFO(known);
    const std::string line = std::string("--nnodes 2 --rdzv-endpoint ") + known + " train";
    CHECK(name_to_resolve(options_of(line)) == "");
  }
  CHECK(name_to_resolve(options_of("--nnodes 2 --master-addr head train")) == "head");
  CHECK(name_to_resolve(options_of("--nnodes 2 train")) == "");
}

TEST_CASE("RendezvousPlan: the others know the host by a number, whatever name the endpoint has",
          "[plan]") {
  MachineFacts facts = here_with_token();
  const auto address = [&](const std::string& line) {
    return make_plan(options_of(line + " train"), facts)->node_address;
  };
  CHECK(address("--nnodes 2 --rdzv-endpoint node0") == "10.0.0.1");
  CHECK(address("--nnodes 2 --rdzv-endpoint localhost:5") == "127.0.0.1");
  CHECK(address("--nnodes 2 --rdzv-endpoint vip:5 --rdzv-conf is_host=1") == "10.0.0.1");
  facts.endpoint_addresses = {"127.0.1.1", "192.168.7.1"};
  CHECK(address("--nnodes 2 --rdzv-endpoint node0") == "192.168.7.1");
  CHECK(address("--nnodes 2 --rdzv-endpoint node0 --local-addr 10.0.0.1") == "10.0.0.1");
}

TEST_CASE("RendezvousPlan: is_host overrides every guess", "[plan]") {
  CHECK(planned("--nnodes 2 --rdzv-endpoint vip:5 --rdzv-conf is_host=1") ==
        "host vip:5 on all, if taken fail");
  CHECK(planned("--nnodes 2 --rdzv-endpoint node0:5 --rdzv-conf is_host=0") == "join node0:5");
  CHECK(planned("--nnodes 2 --rdzv-conf is_host=1") == "host 10.0.0.1:29400 on all, if taken fail");
  CHECK(planned("--nnodes 2 --rdzv-conf is_host=0").starts_with("error: --rdzv-conf is_host=0 "));
}

TEST_CASE("RendezvousPlan: torchrun's static command lines work as they are", "[plan]") {
  const std::string both = "--nnodes 2 --master-addr 10.0.0.1 --master-port 1234 --node-rank ";
  CHECK(planned(both + "0") == "host 10.0.0.1:1234 on 10.0.0.1, if taken fail");
  CHECK(planned(both + "1") == "join 10.0.0.1:1234");
  CHECK_FALSE(plan_of(both + "0").store_port);
  CHECK(plan_of(both + "0").store_address == "10.0.0.1");
  CHECK(plan_of(both + "1").store_address == "10.0.0.1");
  CHECK(plan_of("--nnodes 2 --node-rank 1 --master-addr router").store_address == "router");
  CHECK(plan_of("--nnodes 2 --node-rank 0 --master-addr router").store_address == "10.0.0.1");
  CHECK(plan_of(both + "0").store_at_endpoint);
  const RendezvousPlan of_endpoint = plan_of("--nnodes 2 --rdzv-endpoint router:5");
  CHECK((of_endpoint.store_address == "router" && !of_endpoint.store_at_endpoint));
  CHECK_FALSE(plan_of(both + "0 --rdzv-endpoint 10.0.0.1:5").store_at_endpoint);
  const RendezvousPlan one_port = plan_of(both + "0 --rdzv-endpoint 10.0.0.1:5 --one-port");
  CHECK((one_port.store_at_endpoint && !one_port.store_port));
  REQUIRE(one_port.warnings.size() == 1);
  CHECK(one_port.warnings[0].ends_with("that of the endpoint: --master-port 1234 is not used"));
  CHECK(planned(both + "0 --rdzv-conf auth=none --one-port") ==
        "error: --one-port needs the run's token: leave out auth=none of --rdzv-conf");
  CHECK(plan_of(both + "0 --rdzv-conf auth=none").store_address.empty());
  CHECK(plan_of("--nnodes 2 --rdzv-endpoint a:5,b:5").store_address.empty());
  CHECK(plan_of(both + "1").node_rank == 1);

  CHECK(planned("--nnodes 2 --master-addr vip --node-rank 0") ==
        "host vip:29500 on all, if taken fail");
  CHECK(planned("--nnodes 2 --master-addr 10.0.0.1") ==
        "host 10.0.0.1:29500 on 10.0.0.1, if taken join");
  CHECK(planned("--nnodes 2 --master-addr 10.0.0.2") == "join 10.0.0.2:29500");
  CHECK(planned("--nnodes 2 --node-rank 0") == "host 10.0.0.1:29500 on all, if taken fail");
  CHECK(planned("--nnodes 2 --master-port 7") == "host 10.0.0.1:7 on all, if taken fail");
  const RendezvousPlan blind = plan_of("--nnodes 2 --node-rank 1");
  CHECK(text_of(blind) == "join 127.0.0.1:29500");
  REQUIRE(blind.warnings.size() == 1);
  CHECK(blind.warnings[0].find("looking on this machine") != std::string::npos);
}

TEST_CASE("RendezvousPlan: a number that is another machine's cannot be hosted at", "[plan]") {
  const std::string has =
      ", but 192.0.2.77 is not an address of this machine (it has 10.0.0.1, 192.168.7.1, fd00::1)";
  const std::string outside = ", or --advertise-addr 192.0.2.77 if that leads here from outside";
  CHECK(planned("--nnodes 2 --node-rank 0 --master-addr 192.0.2.77") ==
        "error: node rank 0 hosts at --master-addr" + has + "; give this node another --node-rank" +
            outside);
  CHECK(planned("--nnodes 2 --rdzv-endpoint 192.0.2.77:5 --rdzv-conf is_host=1") ==
        "error: with --rdzv-conf is_host=1 this node hosts at --rdzv-endpoint" + has +
            "; give this node is_host=0" + outside);
  CHECK(planned("--nnodes 2 --node-rank 0 --master-addr 192.0.2.77 --local-addr 10.0.0.1") ==
        "host 192.0.2.77:29500 on all, if taken fail");
  const std::string router = "--nnodes 2 --rdzv-endpoint 192.0.2.77:5 --advertise-addr 192.0.2.77";
  const RendezvousPlan behind = plan_of(router + " --rdzv-conf is_host=1");
  CHECK(text_of(behind) == "host 192.0.2.77:5 on all, if taken fail");
  CHECK(behind.node_address == "192.0.2.77");
  CHECK(behind.store_listen_host == "");
  CHECK(planned(router + " --rdzv-conf is_host=1 --local-addr 10.0.0.1") ==
        "host 192.0.2.77:5 on 10.0.0.1, if taken fail");
  const RendezvousPlan joins =
      plan_of("--nnodes 2 --rdzv-endpoint a:5 --advertise-addr 192.0.2.77 --local-addr 10.0.0.1");
  CHECK(joins.node_address == "192.0.2.77");
  CHECK(joins.store_listen_host == "10.0.0.1");
  CHECK_FALSE(plan_of("--nnodes 2 --local-addr 10.0.0.1").store_listen_host);
  CHECK(plan_of("--nnodes 2 --advertise-addr 192.0.2.77").endpoint.host == "192.0.2.77");
  CHECK(planned("--nnodes 2 --node-rank 0 --master-addr 0.0.0.0").starts_with("host "));
  CHECK(planned("--nnodes 2 --node-rank 1 --master-addr 192.0.2.77") == "join 192.0.2.77:29500");
}

TEST_CASE("RendezvousPlan: the static backend with an endpoint goes by node rank", "[plan]") {
  const std::string both = "--nnodes 2 --rdzv-backend static --rdzv-endpoint vip:5 --node-rank ";
  CHECK(planned(both + "0") == "host vip:5 on all, if taken fail");
  CHECK(planned(both + "1") == "join vip:5");
  CHECK(planned("--nnodes 2 --rdzv-endpoint localhost:5 --node-rank 1") == "join localhost:5");
  CHECK(planned("--nnodes 2 --rdzv-endpoint vip:5 --node-rank 0") == "join vip:5");
  CHECK(planned("--nnodes 2 --rdzv-backend c10d --rdzv-endpoint localhost:5 --node-rank 1") ==
        "host localhost:5 on 127.0.0.1, if taken join");
}

TEST_CASE("RendezvousPlan: beside an endpoint the master port is the workers'", "[plan]") {
  const RendezvousPlan plan = plan_of("--nnodes 2 --rdzv-endpoint node0:5 --master-port 1234");
  CHECK(plan.endpoint.port == 5);
  CHECK(plan.store_port == 1234);
}

TEST_CASE("RendezvousPlan: the token comes from the flag, the environment, a file, or is minted",
          "[plan]") {
  using Token = RendezvousPlan::Token;
  CHECK(plan_of("--nnodes 2", here()).token == Token::kMint);
  CHECK(plan_of("--nnodes 2").token == Token::kEnvironment);
  CHECK(plan_of("--nnodes 2 --token-file f").token == Token::kFile);
  CHECK(plan_of("--nnodes 2 --token-file f").token_file == "f");
  MachineFacts facts = here();
  facts.token_file = "g";
  CHECK(plan_of("--nnodes 2", facts).token_file == "g");
  CHECK(plan_of("--nnodes 2 --rdzv-conf auth=none").token == Token::kNone);
  CHECK(planned("--nnodes 2 --rdzv-endpoint far:5 --rdzv-conf auth=none", here()) == "join far:5");
  CHECK(planned("--nnodes 2 --rdzv-endpoint far:5", here()) ==
        "error: joining far:5 needs the run's token: paste the whole line that the hosting node "
        "printed (it begins with DDPRUN_TOKEN=), or give --token-file, or --rdzv-conf auth=none "
        "on every node");
}

TEST_CASE("RendezvousPlan: contradictions name both options", "[plan]") {
  CHECK(planned("--standalone --nnodes 2") ==
        "error: --standalone and --nnodes 2 exclude each other: --standalone is one node");
  CHECK(planned("--standalone --nnodes 1:2").starts_with("error: --standalone and --nnodes 1:2 "));
  CHECK(planned("--standalone --local-nodes 2")
            .starts_with("error: --standalone and --local-nodes "));
  CHECK(planned("--local-nodes 2 --node-rank 0")
            .starts_with("error: --node-rank and --local-nodes "));
  CHECK(planned("--nnodes 2 --node-rank 2") == "error: --node-rank 2 must be below --nnodes 2");
  CHECK(planned("--node-rank 1") == "error: --node-rank 1 must be below --nnodes 1");
  CHECK(planned("--nnodes 2 --token-file f --rdzv-conf auth=none")
            .starts_with("error: --token-file"));
  CHECK(planned("--local-nodes 2 --rdzv-endpoint far:5") ==
        "error: --local-nodes 2 runs all its nodes on this machine, but far of --rdzv-endpoint is "
        "another one");
  CHECK(planned("--local-nodes 2 --master-addr far").find("far of --master-addr") !=
        std::string::npos);
  CHECK(planned("--local-nodes 2 --rdzv-endpoint localhost:5") ==
        "host localhost:5 on 127.0.0.1, if taken join");
  CHECK(planned("--nnodes 2 --rdzv-endpoint far:0").starts_with("error: port 0 of far:0 "));
  CHECK(planned("--nnodes 2 --rdzv-endpoint localhost:0") ==
        "host localhost:0 on 127.0.0.1, if taken join");
}

// "1 warning; 2 warnings", of a node with as many workers.
std::string absent(const std::string& line, int workers) {
  std::string text;
  for (const std::string& warning : absent_rank_warnings(options_of(line + " train"), workers)) {
    text += (text.empty() ? "" : "; ") + warning;
  }
  return text;
}

TEST_CASE("RendezvousPlan: a local rank that no worker has is named", "[plan]") {
  CHECK(absent("", 1).empty());
  CHECK(absent("--local-ranks-filter 0,3 -r 0:1,3:2 -t 3:3", 4).empty());
  CHECK(absent("-r 3", 1).empty());
  CHECK(absent("--local-ranks-filter 4", 4) ==
        "--local-ranks-filter names local rank 4, but this node's last local rank is 3: no "
        "worker's lines are printed");
  CHECK(absent("--local-ranks-filter 7,0,4,5,4", 4) ==
        "--local-ranks-filter names local ranks 4-5, 7, but this node's last local rank is 3");
  CHECK(absent("-r 0:1,1:2 -t 2:3", 1) ==
        "--redirects names local rank 1, but this node's last local rank is 0; "
        "--tee names local rank 2, but this node's last local rank is 0");
  // A spare is a worker, too.
  CHECK(absent("--spares 2 --max-restarts 9 --local-ranks-filter 5", 4).empty());
  CHECK_FALSE(absent("--spares 2 --max-restarts 9 --local-ranks-filter 6", 4).empty());
}

TEST_CASE(
    "RendezvousPlan: several endpoints are daemons that stand by for each other, to be joined",
    "[plan]") {
  const RendezvousPlan plan = plan_of("--nnodes 2 --rdzv-endpoint node0:1,[::1]:2,node7");
  CHECK(plan.mode == RendezvousPlan::Mode::kJoin);
  CHECK(plan.endpoint == Endpoint{"node0", 1});
  CHECK(plan.other_endpoints == std::vector<Endpoint>{{"::1", 2}, {"node7", kEndpointPort}});
}

TEST_CASE("RendezvousPlan: in a pod no token is made, for nobody could copy it", "[plan]") {
  MachineFacts pod = here();
  pod.in_pod = true;
  for (const char* line :
       {"--nnodes 2", "--nnodes 2 --node-rank 0 --master-addr node0",
        "--nnodes 2 --node-rank 1 --master-addr elsewhere", "--nnodes 1:2 --rdzv-endpoint node0"}) {
    CAPTURE(line);
    CHECK(planned(line, pod).find("Secret") != std::string::npos);
    CHECK(planned(std::string(line) + " --rdzv-conf auth=none", pod).find("error") != 0);
    pod.token_in_environment = true;
    CHECK(planned(line, pod).find("error") != 0);
    pod.token_in_environment = false;
  }
  CHECK(plan_of("--local-nodes 2", pod).token == RendezvousPlan::Token::kMint);
  CHECK(planned("", pod) == "standalone at 127.0.0.1");
}

}  // namespace
}  // namespace ddprun::launcher
