#include "launcher/options/hosts.h"

#include <catch2/catch.hpp>

#include "tests/support/command_line.h"

namespace ddprun::launcher {
namespace {

std::string text_of(const Result<std::vector<HostEntry>>& hosts) {
  if (!hosts) return "error: " + hosts.error().context;
  std::string text;
  for (const HostEntry& host : *hosts) {
    text += (text.empty() ? "" : " ") + ssh_target(host);
    if (host.workers) text += "=" + std::to_string(*host.workers);
  }
  return text;
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string argv_of(const std::string& line, int node_rank, const Environment& environment = {}) {
  const Options options = options_of(line, environment);
  const HostsMeeting meeting{{"a", 30'000}, "run", static_cast<int>(options.hosts.size())};
  return joined(node_argv(options, meeting, options.hosts.at(static_cast<std::size_t>(node_rank)),
                          node_rank));
}

TEST_CASE("Hosts: names, addresses, users and numbers of workers", "[hosts]") {
  CHECK(text_of(parse_hosts("a")) == "a");
  CHECK(text_of(parse_hosts("a,b:4,alice@c,bob@[::1]:2,10.0.0.1:1,fe80::1")) ==
        "a b=4 alice@c bob@::1=2 10.0.0.1=1 fe80::1");
  CHECK(text_of(parse_hosts("a,b,a:2")) == "error: a is given twice");
  CHECK(text_of(parse_hosts("a:0")) == "error: give from 1 to 4096 workers behind a");
  CHECK(text_of(parse_hosts("a:4097")) == "error: give from 1 to 4096 workers behind a");
  for (const char* wrong : {"", ",", "a,", "a b", "-oProxyCommand=x", "x@-a", "-l@a", "@a", "a/b",
                            "a:x", "a;b", "$(a)", "a@b@c"}) {
    INFO(wrong);
    CHECK(text_of(parse_hosts(wrong)).starts_with("error: "));
  }
}

TEST_CASE("Hosts: each node gets the user's line with its own place in it", "[hosts]") {
  const std::string line =
      "--hosts a,b:4 --nproc-per-node 2 --max-restarts 1 --use-env=0 --ssh s train -x";
  CHECK(argv_of(line, 0) ==
        "ddprun --max-restarts 1 --use-env=0 --nnodes 2 --nproc-per-node 2 --rdzv-endpoint "
        "a:30000 --rdzv-id run --rdzv-conf is_host=1 --node-rank 0 -- train -x");
  CHECK(argv_of(line, 1) ==
        "ddprun --max-restarts 1 --use-env=0 --nnodes 2 --nproc-per-node 4 --rdzv-endpoint "
        "a:30000 --rdzv-id run --rdzv-conf is_host=0 --node-rank 1 -- train -x");
  CHECK(argv_of("--hosts a,b,c --nnodes 1:2 train", 2, {{"PET_RDZV_CONF", "join_timeout=5"}}) ==
        "ddprun --nnodes 1:2 --nproc-per-node 1 --rdzv-endpoint a:30000 --rdzv-id run --rdzv-conf "
        "join_timeout=5,is_host=0 -- train");  // A spare has no rank.
  CHECK(argv_of("--hosts a,b --rdzv-endpoint daemon:5 train", 0).find("is_host") ==
        std::string::npos);
  CHECK(argv_of("--hosts a,b --rdzv-endpoint a:30000,[::1]:5,c train", 1) ==
        "ddprun --nnodes 2 --nproc-per-node 1 --rdzv-endpoint a:30000,[::1]:5,c --rdzv-id run "
        "--node-rank 1 -- train");
}

TEST_CASE("Hosts: what each node gets is a command line that ddprun takes", "[hosts]") {
  const std::string line = argv_of("--hosts a,b -m --role x -t 3 -v train --nnodes 9", 1);
  const Options options = options_of(line.substr(std::string("ddprun ").size()));
  CHECK(options.node_rank == 1);
  CHECK(options.nnodes == NodeRange{2, 2});
  CHECK(options.rdzv_conf.is_host == false);
  CHECK(options.module);
  CHECK(options.hosts.empty());
  CHECK(joined(options.program_arguments) == "--nnodes 9");
}

TEST_CASE("Hosts: what training reads is carried, and what --env names", "[hosts]") {
  const Environment environment = {
      {"NCCL_DEBUG", "INFO"}, {"OMP_NUM_THREADS", "2"}, {"HOME", "/h"},
      {"MINE", "1"},          {"DDPRUN_TOKEN", "s"},    {"DDPRUN_TOKEN_FILE", "f"},
      {"PET_NNODES", "2"},    {"PYTHONPATH", "/p"},     {"DDPRUN_BACKEND", "gloo"}};
  CHECK(joined(carried_environment(options_of("--hosts a --env MINE train"), environment)) ==
        "DDPRUN_CONFIG= DDPRUN_BACKEND=gloo MINE=1 NCCL_DEBUG=INFO OMP_NUM_THREADS=2 "
        "PYTHONPATH=/p");
}

TEST_CASE("Hosts: what excludes --hosts is said", "[hosts]") {
  for (const char* flag : {"--standalone", "--local-nodes 2", "--node-rank 0", "--master-addr a",
                           "--local-addr a", "--rdzv-conf is_host=1", "--rdzv-backend static"}) {
    INFO(flag);
    CHECK(error_of("--hosts a,b " + std::string(flag) + " train").find("exclude each other: ") !=
          std::string::npos);
  }
  CHECK(error_of("--hosts a,b --nnodes 3 t") == "--nnodes 3 needs more than the 2 of --hosts");
  CHECK(error_of("--hosts a,a t") == "--hosts 'a,a': a is given twice");
  CHECK(error_of("--hosts a --env A=1 t").starts_with("--env 'A=1': give names of variables"));
  CHECK(options_of("--hosts a t", {{"PET_SSH", "ssh -p 5  -v"}}).ssh ==
        std::vector<std::string>{"ssh", "-p", "5", "-v"});
}

TEST_CASE("Hosts: the words of --ssh may be quoted", "[hosts]") {
  const auto ssh = [](const std::string& text) {
    return options_of("--hosts a t", {{"PET_SSH", text}}).ssh;
  };
  using Words = std::vector<std::string>;
  CHECK(ssh("ssh -o 'ProxyCommand=ssh -W %h:%p jump' -v") ==
        Words{"ssh", "-o", "ProxyCommand=ssh -W %h:%p jump", "-v"});
  CHECK(ssh("ssh -o \"User=a b\" -i my\\ key") == Words{"ssh", "-o", "User=a b", "-i", "my key"});
  CHECK(ssh("ssh -o A='it'\"'\"'s' ''") == Words{"ssh", "-o", "A=it's", ""});
  const std::vector<std::string> torn = {"--hosts", "a", "--ssh", "ssh -o 'x", "t"};
  CHECK_THAT(parse_words(torn).error().context,
             Catch::Matchers::Contains("a quotation mark is missing"));
}

TEST_CASE("Hosts: with a script each node gets a line without a place", "[hosts]") {
  const Options options = options_of(
      "--host-discovery ./s --host-discovery-period 2 --nnodes 1:4 --local-addr here --ssh s "
      "--rdzv-conf join_timeout=5 --max-restarts 1 train");
  CHECK(options.host_discovery == std::vector<std::string>{"./s"});
  CHECK(options.host_discovery_period == std::chrono::seconds(2));
  const HostsMeeting meeting{{"here", 29'400}, "run", 4};
  CHECK(joined(node_argv(options, meeting, {"b", "", 3}, std::nullopt)) ==
        "ddprun --max-restarts 1 --nnodes 1:4 --nproc-per-node 3 --rdzv-endpoint here:29400 "
        "--rdzv-id run --rdzv-conf join_timeout=5,is_host=0 -- train");
}

TEST_CASE("Hosts: what excludes --host-discovery is said", "[hosts]") {
  const std::string line = "--host-discovery ./s --nnodes 1:2 ";
  for (const char* flag : {"--hosts a,b", "--standalone", "--local-nodes 2", "--node-rank 0",
                           "--master-addr a", "--rdzv-conf is_host=1", "--rdzv-backend static"}) {
    INFO(flag);
    CHECK(error_of(line + flag + " train").starts_with("--host-discovery and --"));
  }
  for (const char* nodes : {"", "--nnodes 2 "}) {
    CHECK(error_of("--host-discovery ./s " + std::string(nodes) + "t") ==
          "--host-discovery needs --nnodes MIN:MAX: how few and how many hosts are used");
  }
  CHECK(error_of(line + "--host-discovery-period 0 t") ==
        "--host-discovery-period '0': give more than 0 seconds");
  CHECK(error_of("--host-discovery= t").starts_with("--host-discovery is empty: name a script"));
}

}  // namespace
}  // namespace ddprun::launcher
