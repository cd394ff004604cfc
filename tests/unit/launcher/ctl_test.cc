#include <catch2/catch.hpp>

#include "launcher/ctl/ctl_options.h"
#include "launcher/ctl/ctl_text.h"

namespace ddprun::launcher {
namespace {

using Verb = CtlOptions::Verb;

const Environment kWithToken = {{"DDPRUN_TOKEN", "t"}};

Result<CtlOutcome> parsed(std::vector<const char*> words,
                          const Environment& environment = kWithToken) {
  words.insert(words.begin(), "ddprunctl");
  return parse_ctl(static_cast<int>(words.size()), words.data(), environment);
}
CtlOptions options(std::vector<const char*> words, const Environment& environment = kWithToken) {
  return std::get<CtlOptions>(parsed(std::move(words), environment).value());
}
std::string complaint(std::vector<const char*> words, const Environment& environment = kWithToken) {
  const auto outcome = parsed(std::move(words), environment);
  return outcome ? "accepted" : outcome.error().context;
}

TEST_CASE("ddprunctl: verbs, their words and where the daemon is", "[ctl]") {
  CHECK(options({"status"}).verb == Verb::kStatus);
  CHECK(to_string(options({"status"}).endpoint) == "127.0.0.1:29400");
  const CtlOptions nodes = options({"-e", "[::1]:5", "nodes", "--run", "x", "--json"});
  CHECK(nodes.verb == Verb::kNodes);
  CHECK(nodes.run_id == "x");
  CHECK(nodes.json);
  CHECK(to_string(nodes.endpoint) == "[::1]:5");
  const CtlOptions drain = options({"drain", "h1", "--reason", "fan", "--rdzv-endpoint", "head"});
  CHECK(drain.verb == Verb::kDrain);
  CHECK(drain.node == "h1");
  CHECK(drain.reason == "fan");
  CHECK(to_string(drain.endpoint) == "head:29400");
  const CtlOptions resize = options({"resize", "x", "3"});
  CHECK(resize.verb == Verb::kResize);
  CHECK(resize.run_id == "x");
  CHECK(resize.nodes == 3);
  const CtlOptions cancel = options({"cancel", "x"});
  CHECK(cancel.verb == Verb::kCancel);
  CHECK(cancel.run_id == "x");
}

TEST_CASE("ddprunctl: the choices of whatif", "[ctl]") {
  const CtlOptions all =
      options({"whatif",   "job7",     "--mtbf",        "6h",          "--lost-nodes",      "25",
               "--repair", "90s",      "--spare-nodes", "0,1,2",       "--spares",          "1",
               "--nodes",  "64,16:64", "--checkpoint",  "auto,10,0.5", "--checkpoint-cost", "2.5s",
               "--for",    "30d",      "--json"});
  CHECK(all.verb == Verb::kWhatIf);
  CHECK(all.run_id == "job7");
  CHECK(all.json);
  CHECK(all.own_first);
  CHECK(all.what_if.mtbf == 6 * 3'600.0);
  CHECK(all.what_if.node_loss_share == 0.25);
  CHECK(all.what_if.repair == 90.0);
  CHECK(all.what_if.spare_nodes == std::vector<int>{0, 1, 2});
  CHECK(all.what_if.spares == std::vector<int>{1});
  REQUIRE(all.what_if.nodes.size() == 2);
  CHECK(all.what_if.nodes[1].min == 16);
  CHECK(all.what_if.nodes[1].max == 64);
  CHECK(all.what_if.intervals == std::vector<std::optional<double>>{std::nullopt, 600.0, 30.0});
  CHECK(all.what_if.checkpoint == 2.5);
  CHECK(all.what_if.length == 30 * 86'400.0);

  const CtlOptions file = options({"whatif", "--from", "a.json"}, {{"DDPRUN_ENDPOINT", "head"}});
  CHECK(file.account_file == "a.json");
  CHECK(complaint({"whatif", "r", "--from", "a.json"}).find("give no RUN") != std::string::npos);
  CHECK_FALSE(file.queries_daemon);
  CHECK(complaint({"whatif", "r", "--mtbf", "6"}) ==
        "--mtbf '6': give a time such as 45s, 30m, 6h or 2d, up to 3650d");
  for (const char* wrong : {"h", "-1h", "0s", "4000d", "1e9d", "infh", "nans", "6 h", "6hh"}) {
    INFO(wrong);
    CHECK(complaint({"whatif", "r", "--mtbf", wrong}).find("give a time") != std::string::npos);
  }
  for (const char* wrong : {"101", "-1", "x"}) {
    CHECK(complaint({"whatif", "r", "--lost-nodes", wrong}).find("percentage") !=
          std::string::npos);
  }
  CHECK(complaint({"whatif", "r", "--checkpoint", "10,,5"}).find("give auto, or minutes") !=
        std::string::npos);
  CHECK(complaint({"whatif", "r", "--spares", "0,x"}).find("such as 0,1,2") != std::string::npos);
  CHECK(complaint({"whatif", "r", "--nodes", "4:2"}).find("MIN:MAX") != std::string::npos);
  CHECK(complaint({"whatif", "r", "--nodes", "20000"}).find("10000") != std::string::npos);
}

TEST_CASE("ddprunctl: what this machine knows needs no token and no daemon", "[ctl]") {
  CHECK(options({"history"}, {}).verb == Verb::kHistory);
  CHECK_FALSE(options({"history", "job7", "--json"}, {}).queries_daemon);
  CHECK_FALSE(options({"history"}, {{"DDPRUN_ENDPOINT", "head"}}).queries_daemon);
  CHECK(options({"history", "-e", "head"}).queries_daemon);
  CHECK(complaint({"history", "-e", "head"}, {}).starts_with("the daemon's token is needed"));
  const CtlOptions logs = options({"logs", "job7", "3", "-f"}, {});
  CHECK(logs.verb == Verb::kLogs);
  CHECK(logs.run_id == "job7");
  CHECK(logs.rank == 3);
  CHECK(logs.follow);
  CHECK_FALSE(options({"logs"}, {}).rank.has_value());
  CHECK(options({"stacks", "job7", "3"}, {}).rank == 3);
  const CtlOptions top = options({"top", "--interval", "0.5", "--once"}, {});
  CHECK_FALSE(top.queries_daemon);
  CHECK(top.once);
  CHECK(top.interval == Milliseconds(500));
  CHECK(options({"top", "-e", "head"}).queries_daemon);
  CHECK(complaint({"top", "-e", "head"}, {}).starts_with("the daemon's token is needed"));
  CHECK(complaint({"top", "--interval", "0"}, {}) ==
        "--interval '0': give seconds from 0.1 to 3600");
  CHECK(complaint({"logs", "x", "-1"}, {}) != "accepted");
  CHECK(complaint({"stacks", "x"}, {}) == "stacks needs RANK; see ddprunctl --help");
}

TEST_CASE("ddprunctl: a debug handler is a name and parameters, as in a URL", "[ctl]") {
  const CtlOptions debug =
      options({"debug", "job7", "3", "fr_trace_json?backend=nccl", "--timeout", "5"}, {});
  CHECK(debug.verb == Verb::kDebug);
  CHECK_FALSE(debug.queries_daemon);
  CHECK(debug.rank == 3);
  CHECK(debug.handler == "fr_trace_json?backend=nccl");
  CHECK(debug.debug_limit == Milliseconds(5001));
  CHECK(options({"debug", "job7", "3"}, {}).handler.empty());
  for (const char* bad : {"ping HTTP/1.1\r\nX: y", "a b", "?backend=nccl", "a#b", "p\xC3\xA9"}) {
    CHECK(complaint({"debug", "job7", "3", bad}, {}).find("it is no handler") != std::string::npos);
  }
  CHECK(complaint({"debug", "job7", "3", "x", "--timeout", "0"}, {}) ==
        "--timeout '0': give seconds above 0, up to 3600");
}

TEST_CASE("ddprunctl: a report is of a past run here, else of the daemon's", "[ctl]") {
  const CtlOptions own = options({"report", "job7"}, {});
  CHECK(own.own_first);
  CHECK_FALSE(own.queries_daemon);  // There is no token.
  CHECK(options({"report", "job7"}).own_first);
  CHECK(options({"report", "job7"}).queries_daemon);
  CHECK_FALSE(options({"report", "job7", "-e", "head"}).own_first);
  CHECK(complaint({"report", "x", "-e", "head"}, {}).starts_with("the daemon's token is needed"));
}

TEST_CASE("ddprunctl: endpoint and token come from where ddprun looks for them", "[ctl]") {
  Environment environment = {{"DDPRUN_TOKEN", "t"}, {"DDPRUN_ENDPOINT", "a:1"}};
  CHECK(options({"status"}, environment).endpoint.host == "a");
  environment["PET_RDZV_ENDPOINT"] = "b:2";
  CHECK(options({"status"}, environment).endpoint.host == "b");
  CHECK(options({"status", "-e", "c"}, environment).endpoint.host == "c");
  environment["DDPRUN_TOKEN_FILE"] = "/f";
  CHECK_FALSE(options({"status"}, environment).token_file.has_value());
  environment["DDPRUN_TOKEN"] = "";
  CHECK(options({"status"}, environment).token_file == "/f");
  CHECK(options({"status", "--token-file", "/g"}, environment).token_file == "/g");
  CHECK_FALSE(options({"--no-auth", "status"}, {}).authenticated);
}

TEST_CASE("ddprunctl: what cannot be meant is refused with a sentence", "[ctl]") {
  CHECK(complaint({"status"}, {}).starts_with("the daemon's token is needed"));
  CHECK(complaint({}).starts_with("give a command: status, nodes, drain"));
  CHECK(complaint({"frob"}).starts_with("unknown command 'frob': give status, nodes, drain"));
  CHECK(complaint({"status", "frob"}) == "unknown argument 'frob'; see ddprunctl --help");
  CHECK(complaint({"--frob"}) == "unknown argument '--frob'; see ddprunctl --help");
  CHECK(complaint({"resize", "job7", "x"}) == "nodes 'x': give a number; see ddprunctl --help");
  CHECK(complaint({"cancel"}) == "cancel needs RUN; see ddprunctl --help");
  CHECK(complaint({"status", "-e", "h:x"}).starts_with("--rdzv-endpoint 'h:x'"));
  CHECK(complaint({"--no-auth", "--token-file", "/f", "status"}).find("excludes") !=
        std::string::npos);
  for (const auto& words : {std::vector<const char*>{"cancel", "a\x1b[2J"},
                            {"status", "--run", "a\nb"},
                            {"logs", "a\xc2\x9b"}}) {
    CHECK_THAT(complaint(words), Catch::Matchers::Contains("run 'a?") &&
                                     Catch::Matchers::Contains("without control characters"));
  }
  CHECK(options({"cancel", "x", "--reason", "a\x1b[2J\nb"}).reason == "a?[2J?b");
  CHECK(complaint({"status", "--reason", "x"}).find("--reason") != std::string::npos);
}

TEST_CASE("ddprunctl: help has examples and exit codes", "[ctl]") {
  for (const auto& words : {std::vector<const char*>{"--help"}, {"drain", "--help"}}) {
    const std::string help = std::get<PrintAndExit>(parsed(words, {}).value()).text;
    CHECK(help.find("ddprunctl cancel job7") != std::string::npos);
    CHECK(help.find("Exit codes") != std::string::npos);
  }
}

TEST_CASE("ddprunctl: columns line up, and nothing of a name is obeyed by the terminal", "[ctl]") {
  using rendezvous::DaemonStatus, rendezvous::RunStatus, rendezvous::NodeStatus;
  RunStatus run{.run_id = "a-long-name", .state = "running", .round = 0, .restart_count = 1};
  run.max_restarts = 3;
  run.nnodes_min = 1;
  run.nnodes_max = 4;
  run.world_size = 6;
  run.waiting_for = "round 0 runs";
  run.nodes = {{.id = "n1", .host = "h1", .address = "10.0.0.1", .phase = "seated"},
               {.id = "n2", .host = "\x1b[2J", .address = "10.0.0.2", .phase = "ready"}};
  run.nodes[0].group_rank = 0;
  run.nodes[0].base_rank = 0;
  run.nodes[0].local_world_size = 6;
  run.nodes[0].silent = Milliseconds(250);
  RunStatus other{.run_id = "b", .state = "ended", .waiting_for = "it has ended: x\ny"};
  CHECK(runs_text({{run, other}}) ==
        "RUN          STATE    ROUND  RESTARTS  NODES     WORKERS  NOW\n"
        "a-long-name  running  0      1 of 3    2 of 1:4  6        round 0 runs\n"
        "b            ended    0      0 of 0    0 of 0    0        it has ended: x\n");
  CHECK(nodes_text({{run}}) ==
        "RUN          HOST  NODE  ADDRESS   PHASE   GROUP_RANK  RANKS  HEARD\n"
        "a-long-name  h1    n1    10.0.0.1  seated  0           0-5    0.2 s ago\n"
        "a-long-name  ?[2J  n2    10.0.0.2  ready   -           -      0.0 s ago\n");
  other.verdict = rendezvous::VerdictStatus{"worker_failed", 7, "rank 1\nlast words"};
  CHECK(run_text(other).find("verdict: worker_failed, exit code 7\n  rank 1\n  last words\n") !=
        std::string::npos);
  CHECK(runs_text({}) == "no runs\n");
  CHECK(nodes_text({}) == "no nodes\n");
}

}  // namespace
}  // namespace ddprun::launcher
