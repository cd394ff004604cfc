#include "launcher/options/options.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>

#include "launcher/options/flags.h"
#include "tests/support/command_line.h"

namespace ddprun::launcher {
namespace {

using namespace std::chrono_literals;
using Words = std::vector<std::string>;

TEST_CASE("Options: without any flag the defaults are torchrun's", "[options]") {
  const Options options = options_of("train");
  CHECK(options.program == "train");
  CHECK(options.program_arguments.empty());
  CHECK_FALSE(options.nnodes);
  CHECK(options.nproc_per_node == WorkerCount{});
  CHECK(options.max_restarts == 0);
  CHECK(options.shutdown_timeout == 30s);
  CHECK(options.signals_to_handle == std::vector<int>{SIGTERM, SIGINT, SIGHUP, SIGQUIT});
  CHECK(options.role == "default");
  CHECK(options.rdzv_conf == RdzvConf{});
  CHECK(options.verbosity == Verbosity::kNormal);
  CHECK(options.given.empty());
}

TEST_CASE("Options: both spellings, attached and detached values", "[options]") {
  for (const char* line : {"--nproc-per-node 4 train", "--nproc_per_node 4 train",
                           "--nproc-per-node=4 train", "--nproc_per_node=4 train"}) {
    INFO(line);
    CHECK(options_of(line).nproc_per_node.number == 4);
  }
}

TEST_CASE("Options: every flag reaches its member", "[options]") {
  const Options options = options_of(
      "--standalone --nnodes 2:4 --nproc-per-node gpu --node-rank 1 --local-nodes 3 "
      "--rdzv-endpoint node1:29401 --rdzv-backend static --rdzv-id run7 --rdzv-conf join_timeout=5 "
      "--token-file t --local-addr 10.0.0.2 --master-addr node0 --master-port 1234 "
      "--max-restarts 3 --spares 2 --min-ranks 4 --audit 0.5% --shutdown-timeout 2.5 "
      "--signals-to-handle "
      "SIGUSR1,SIGTERM "
      "--preempt-signal SIGUSR2,SIGTERM "
      "-m --role trainer --virtual-local-rank --log-dir logs -r 0:1,12:2 -t 3 "
      "--local-ranks-filter 0,2 --log-line-prefix-template [${rank}] -v --report --dry-run "
      "--monitor-interval 0.1 --start-method fork train.mod");
  CHECK(options.standalone);
  CHECK(options.nnodes == NodeRange{2, 4});
  CHECK(options.nproc_per_node.kind == WorkerCount::Kind::kGpu);
  CHECK(options.node_rank == 1);
  CHECK(options.local_nodes == 3);
  CHECK(options.rdzv_endpoint == Endpoint{"node1", 29401});
  CHECK(options.rdzv_backend == RdzvBackend::kStatic);
  CHECK(options.rdzv_id == "run7");
  CHECK(options.rdzv_conf.join_timeout == 5s);
  CHECK(options.spares == 2);
  CHECK(options.min_ranks == 4);
  CHECK(options.exported.at("DDPRUN_AUDIT") == "0.5");
  CHECK(options.token_file == "t");
  CHECK(options.local_addr == "10.0.0.2");
  CHECK(options.master_addr == "node0");
  CHECK(options.master_port == 1234);
  CHECK(options.max_restarts == 3);
  CHECK(options.shutdown_timeout == 2500ms);
  CHECK(options.signals_to_handle == std::vector<int>{SIGUSR1, SIGTERM});
  CHECK(options.preempt_signals == std::vector<int>{SIGUSR2, SIGTERM});
  CHECK(handled_signals(options) == std::vector<int>{SIGUSR1, SIGTERM, SIGUSR2});
  CHECK(options.module);
  CHECK_FALSE(options.no_python);
  CHECK(options.role == "trainer");
  CHECK(options.virtual_local_rank);
  CHECK(options.log_dir == "logs");
  CHECK(options.output.redirects.of_rank == std::map<int, std::uint8_t>{{0, 1}, {12, 2}});
  CHECK(options.output.tee.others == StreamMap::kBoth);
  CHECK(options.output.local_ranks_filter == std::vector<int>{0, 2});
  CHECK(options.output.prefix_template == "[${rank}]");
  CHECK(options.verbosity == Verbosity::kVerbose);
  CHECK(options.dry_run);
  CHECK(options.report);
  CHECK(options_of("--no-python --quiet x.py").no_python);
  CHECK(options_of("--no-python --quiet x.py").verbosity == Verbosity::kQuiet);
}

TEST_CASE("Options: where workers run, and what is done with stuck ones", "[options]") {
  const Options o = options_of(
      "--numa-binding core-complex --oversubscribe-gpu --omp-num-threads auto --on-stall kill "
      "--stall-timeout 7.5 train");
  CHECK(o.numa_binding == agent::NumaBinding::kCoreComplex);
  CHECK(o.oversubscribe_gpu);
  CHECK(o.omp_num_threads == 0);
  CHECK(o.stalls.on_stall == agent::OnStall::kKill);
  CHECK(o.stalls.timeout == 7500ms);
  CHECK(options_of("--omp_num_threads=12 train").omp_num_threads == 12);
  CHECK(options_of("train").omp_num_threads == std::nullopt);
  CHECK(error_of("--omp-num-threads 0 t") ==
        "--omp-num-threads '0': give auto, or a whole number from 1 to 4096");
  CHECK(error_of("--stall-timeout 0 t").starts_with("--stall-timeout '0'"));
  CHECK(error_of("--on-stall restart t").starts_with("--on-stall 'restart': give kill or log or"));
  CHECK(error_of("--numa-binding near t").starts_with("--numa-binding 'near': give "));
}

TEST_CASE("Options: what a fork server imports", "[options]") {
  CHECK(options_of("train.py").preload.empty());
  CHECK(options_of("--preload off train.py").preload.empty());
  CHECK(options_of("--preload auto train.py").preload == "auto");
  CHECK(options_of("--preload torch,torch.nn_2,_x train.py").preload == "torch,torch.nn_2,_x");
  CHECK(options_of("train.py", {{"PET_PRELOAD", "torch"}}).preload == "torch");
  for (const std::string text : {"torch,", ",torch", "a..b", ".a", "a.", "1a", "a;b", "-"}) {
    CHECK(error_of("--preload=" + text + " t") ==
          "--preload '" + text + "': give auto, off, or modules separated by commas: torch,numpy");
  }
  for (const std::string text : {"on", "yes", "AUTO", "Off", "torch,on", "none"}) {
    CHECK(error_of("--preload=" + text + " t") ==
          "--preload '" + text + "': give auto, off, or modules separated by commas: torch,numpy");
  }
  CHECK(error_of("--preload auto,numpy t") ==
        "--preload 'auto,numpy': auto finds the modules by itself: give auto, or the modules "
        "without it");
  CHECK(options_of("--preload on_call,Auto_ml t").preload == "on_call,Auto_ml");
  CHECK(options_of("--preload auto train.py").preload_keep == 0);
  CHECK(options_of("--preload auto --preload-keep 30 train.py").preload_keep == 30);
  CHECK(options_of("--preload off --preload-keep 30 train.py").preload_keep == 30);
  CHECK(options_of("train.py", {{"PET_PRELOAD", "auto"}, {"PET_PRELOAD_KEEP", "5"}}).preload_keep ==
        5);
  CHECK_THAT(error_of("--preload-keep 30 t"),
             Catch::StartsWith("--preload-keep needs --preload auto"));
  CHECK_FALSE(error_of("--preload auto --preload-keep -1 t").empty());
}

TEST_CASE("Options: workers are killed at random only if that is asked for, and now and then",
          "[options]") {
  CHECK(options_of("train").chaos == std::nullopt);
  CHECK(options_of("--chaos 10 train").chaos == 10s);
  CHECK(options_of("--chaos=0.5 train").chaos == 500ms);
  CHECK(options_of("--chaos 1 train").chaos_seed == std::nullopt);
  CHECK(options_of("--chaos 1 train", {{"DDPRUN_CHAOS_SEED", "42"}}).chaos_seed == 42);
  for (const std::string text : {"0", "-1", "0.01", "often", "nan", "inf", "1e9", "5s"}) {
    CHECK(error_of("--chaos " + text + " t") ==
          "--chaos '" + text + "': give seconds from 0.1 to 10000000");
  }
  CHECK(options_of("train").port_range.is_any());
  CHECK(options_of("--port-range 7-9 train").port_range == PortRange{7, 9});
  const Environment range = {{"DDPRUN_PORT_RANGE", "29500-29599"}};
  CHECK(options_of("train", range).port_range == PortRange{29'500, 29'599});
  CHECK(options_of("--port-range=7-9 train", range).port_range == PortRange{7, 9});
  for (const std::string text : {"9-7", "0-5", "7", "a-b", "1-65536"}) {
    const std::string what =
        " '" + text + "': give the first and the last port from 1 to 65535, such as 29500-29599";
    CHECK(error_of("--port-range " + text + " t") == "--port-range" + what);
    CHECK(error_of("t", {{"DDPRUN_PORT_RANGE", text}}) == "DDPRUN_PORT_RANGE" + what);
  }
  CHECK(options_of("--audit 100 train").exported.at("DDPRUN_AUDIT") == "100");
  CHECK(options_of("train").exported.empty());
  for (const std::string text : {"101", "-1", "one", "%", "1%%"}) {
    CHECK(error_of("--audit=" + text + " t") ==
          "--audit '" + text + "': give a percentage from 0 to 100");
  }
  CHECK(error_of("--chaos 1 t", {{"DDPRUN_CHAOS_SEED", "-1"}}) ==
        "DDPRUN_CHAOS_SEED '-1': give a number from 0 to 18446744073709551615");
}

TEST_CASE("Options: what stands after the program is the program's", "[options]") {
  const Options options =
      options_of("--nnodes 1 train.py --help --nnodes=7 -m --rdzv-endpoint= [a,b] -- x");
  CHECK(options.nnodes == NodeRange{1, 1});
  CHECK_FALSE(options.module);
  CHECK(options.program_arguments ==
        Words{"--help", "--nnodes=7", "-m", "--rdzv-endpoint=", "[a,b]", "--", "x"});
  CHECK(options_of("-- train -x").program == "train");
  CHECK(options_of("-- train -x").program_arguments == Words{"-x"});
  const auto outcome = parse_words({"my prog", "two words", ""});
  CHECK(std::get<Options>(outcome.value()).program == "my prog");
  CHECK(std::get<Options>(outcome.value()).program_arguments == Words{"two words", ""});
}

TEST_CASE("Options: PET variables are defaults, and the command line wins", "[options]") {
  const Environment environment = {{"PET_NNODES", "3"},
                                   {"PET_STANDALONE", "1"},
                                   {"PET_MODULE", "0"},
                                   {"PET_NPROC_PER_NODE", ""},
                                   {"PET_RDZV_ENDPOINT", "a"}};
  const Options options = options_of("train", environment);
  CHECK(options.nnodes == NodeRange{3, 3});
  CHECK(options.standalone);
  CHECK_FALSE(options.module);
  CHECK(options.nproc_per_node.number == 1);
  CHECK(options.rdzv_endpoint == Endpoint{"a", {}});
  CHECK(options_of("--nnodes 5 train", environment).nnodes == NodeRange{5, 5});
  CHECK_FALSE(options_of("--standalone=0 train", environment).standalone);
  CHECK(error_of("train", {{"PET_NNODES", "x"}}).starts_with("PET_NNODES 'x': give N or MIN:MAX"));
  CHECK(error_of("train", {{"PET_STANDALONE", "yes"}}) == "PET_STANDALONE 'yes': give 1 or 0");
}

TEST_CASE("Options: three variables besides PET give defaults", "[options]") {
  const Environment environment = {{"DDPRUN_ENDPOINT", "daemon:29400"},
                                   {"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7"},
                                   {"TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "${rank}>"}};
  const Options options = options_of("train", environment);
  CHECK(options.rdzv_endpoint == Endpoint{"daemon", 29400});
  CHECK(options.shutdown_timeout == 7s);
  CHECK(options.output.prefix_template == "${rank}>");
  CHECK(options_of("--rdzv-endpoint b --shutdown-timeout 1 x", environment).shutdown_timeout == 1s);
  CHECK(options_of("--rdzv-endpoint b x", environment).rdzv_endpoint->host == "b");
  CHECK(error_of("x", {{"DDPRUN_ENDPOINT", "a:b:"}}).starts_with("DDPRUN_ENDPOINT 'a:b:': give "));
  CHECK(error_of("x", {{"TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "-1"}}).find("-1") != std::string::npos);
}

TEST_CASE("Options: the last of a repeated flag counts, an empty value is none", "[options]") {
  CHECK(options_of("--nnodes 1 --nnodes=2 train").nnodes == NodeRange{2, 2});
  CHECK_FALSE(options_of("--rdzv-endpoint= --nnodes 1 train").rdzv_endpoint);
  CHECK(options_of("--rdzv-endpoint= --nnodes 1 train").program == "train");
  CHECK_FALSE(
      std::get<Options>(parse_words({"--rdzv-endpoint", "", "train"}).value()).rdzv_endpoint);
  CHECK(options_of("--log-line-prefix-template=[a,b] train").output.prefix_template == "[a,b]");
  CHECK(options_of("--log-line-prefix-template= train").output.prefix_template.empty());
}

TEST_CASE("Options: an endpoint is a name or address with or without a port", "[options]") {
  const auto endpoint = [](const std::string& text) {
    return *options_of("--rdzv-endpoint " + text + " train").rdzv_endpoint;
  };
  CHECK(endpoint("node1") == Endpoint{"node1", {}});
  CHECK(endpoint("10.0.0.1:0") == Endpoint{"10.0.0.1", 0});
  CHECK(endpoint("[::1]:29400") == Endpoint{"::1", 29400});
  CHECK(endpoint("[fe80::1%eth0]") == Endpoint{"fe80::1%eth0", {}});
  CHECK(endpoint("fe80::1") == Endpoint{"fe80::1", {}});
  CHECK(to_string(Endpoint{"::1", 5}) == "[::1]:5");
  CHECK(to_string(Endpoint{"a", {}}) == "a");
  for (const char* wrong : {"a:", ":1", "a:65536", "a:x", "[::1", "[::1]5", "[::1]:", "[]:1", "a/b",
                            "tcp://a:1", "a:-1"}) {
    INFO(wrong);
    const std::string error = error_of("--rdzv-endpoint " + std::string(wrong) + " train");
    CHECK(error.starts_with("--rdzv-endpoint '" + std::string(wrong) + "': give "));
  }
}

TEST_CASE("Options: a run id is any text without control characters", "[options]") {
  const auto given = [](const std::string& id, const Environment& environment = {}) {
    const auto outcome = parse_words({"--rdzv-id", id, "train"}, environment);
    return outcome ? "(no error)" : outcome.error().context;
  };
  for (const char* id : {"job7", "größer 北京", "a b;touch x", "'"}) {
    CHECK(given(id) == "(no error)");
  }
  for (const char* id : {"a\nb", "a\x1b]0;x\x07", "a\xc2\x9b[2J", "a\tb", "caf\xe9"}) {
    CHECK_THAT(given(id), Catch::Matchers::StartsWith("--rdzv-id '") &&
                              Catch::Matchers::Contains("without control characters"));
  }
  CHECK_THAT(error_of("train", {{"PET_RDZV_ID", "a\x1b[2J"}}),
             Catch::Matchers::StartsWith("PET_RDZV_ID 'a?[2J'"));
}

TEST_CASE("Options: wrong values are refused with what is allowed", "[options]") {
  for (const char* wrong : {"0", "-1", "x", "2:1", "0:1", "1:2:3", "1:", ":1", "131073", "1.5",
                            "99999999999999999999"}) {
    INFO(wrong);
    CHECK(error_of("--nnodes " + std::string(wrong) + " train") ==
          "--nnodes '" + std::string(wrong) +
              "': give N or MIN:MAX with 1 <= MIN <= MAX <= 131072");
  }
  CHECK(error_of("--nproc-per-node xpu train") ==
        "--nproc-per-node 'xpu': give auto, gpu, cpu or a number from 1 to 4096");
  CHECK(error_of("--nproc-per-node 0 t").starts_with("--nproc-per-node '0'"));
  CHECK(error_of("--node-rank -1 t").starts_with("--node-rank '-1': give a whole number from 0"));
  CHECK(error_of("--max-restarts many t").starts_with("--max-restarts 'many'"));
  CHECK(error_of("--rdzv-backend etcd t").find("needs no etcd") != std::string::npos);
  CHECK(error_of("--master-port 70000 t").starts_with("--master-port '70000': give a port"));
  CHECK(error_of("--start-method thread t").starts_with("--start-method 'thread': give "));
  CHECK(error_of("--shutdown-timeout -1 t").starts_with("--shutdown-timeout '-1': give seconds"));
  CHECK(error_of("--shutdown-timeout nan t").starts_with("--shutdown-timeout 'nan'"));
  CHECK(error_of("--signals-to-handle SIGKILL t").find("'SIGKILL' is not one") !=
        std::string::npos);
  CHECK(error_of("--local-ranks-filter 0,x t").starts_with("--local-ranks-filter '0,x'"));
  CHECK(error_of("--standalone=perhaps t") != "(no error)");
  for (const char* wrong : {"4", "-1", "0:4", "0", "0:1,0:2", "a:1", "0:1,", "0:1;1:2", "9999:1"}) {
    if (std::string(wrong) == "0") continue;
    INFO(wrong);
    CHECK(error_of("--tee " + std::string(wrong) + " t").starts_with("--tee '"));
  }
}

TEST_CASE("Options: an error shows a wrong value on one line and not endlessly", "[options]") {
  const auto error = [](const std::string& value) {
    return parse_words({"--nnodes", value, "train"}).error().context;
  };
  CHECK(error("1\n\033[2J").starts_with("--nnodes '1??[2J': give"));
  CHECK(error(std::string(5000, '7')).starts_with("--nnodes '" + std::string(80, '7') + "...': "));
}

TEST_CASE("Options: what happens to workers' lines", "[options]") {
  const Options options = options_of(
      "--duplicate-stdout-filters loss,,acc,step --duplicate_stderr_filters=Error "
      "--log-rotate 100M:3 --log-format json --fold-lines --error-file why.json train");
  CHECK(options.output.stdout_needles == Words{"loss,acc", "step"});
  CHECK(options.output.stderr_needles == Words{"Error"});
  CHECK(options.output.rotation == agent::LogRotation{.bytes = 100 << 20, .keep = 3});
  CHECK(options.log_format == agent::LineFormat::kJson);
  CHECK(options.fold_lines);
  CHECK(options.error_file == "why.json");
  CHECK(options_of("--log-rotate 4K train").output.rotation == agent::LogRotation{.bytes = 4096});
  CHECK(options_of("--log-rotate 2G:0 train").output.rotation.keep == 0);
  for (const char* wrong :
       {"--log-rotate 100", "--log-rotate K", "--log-rotate 1K", "--log-rotate 9999G",
        "--log-rotate -1M", "--log-rotate 1M:", "--log-rotate 1M:x", "--log-rotate 1M:1001",
        "--log-format xml", "--duplicate-stdout-filters ,", "--duplicate-stdout-filters a,"}) {
    INFO(wrong);
    CHECK_FALSE(parse_line(std::string(wrong) + " train").has_value());
  }
}

TEST_CASE("Options: a stream map answers for each rank and stream", "[options]") {
  const StreamMap some = options_of("-r 0:1,11:3 t").output.redirects;
  CHECK(some.has(0, StreamMap::kStdout));
  CHECK_FALSE(some.has(0, StreamMap::kStderr));
  CHECK(some.has(11, StreamMap::kStderr));
  CHECK_FALSE(some.has(1, StreamMap::kStdout));
  const StreamMap all = options_of("-r2 t").output.redirects;
  CHECK(all.has(5, StreamMap::kStderr));
  CHECK_FALSE(all.has(5, StreamMap::kStdout));
}

TEST_CASE("Options: a worker count reads as it was typed", "[options]") {
  for (const std::string text : {"8", "auto", "gpu", "cpu"}) {
    CHECK(to_string(options_of("--nproc-per-node " + text + " t").nproc_per_node) == text);
  }
}

TEST_CASE("Options: an unknown flag is named with the nearest one", "[options]") {
  CHECK(error_of("--nproc-pre-node 2 train") ==
        "unknown option --nproc-pre-node; did you mean --nproc-per-node?");
  CHECK(error_of("--nnodes 2 --stand-alone train") ==
        "unknown option --stand-alone; did you mean --standalone?");
  CHECK(error_of("-np 4 train") == "unknown option -np; did you mean --nproc-per-node?");
  CHECK(error_of("--num_processes 4 train") ==
        "unknown option --num_processes; did you mean --nproc-per-node?");
  CHECK(error_of("--machine_rank=1 train") ==
        "unknown option --machine_rank; did you mean --node-rank?");
  CHECK(error_of("--hostfile hosts train") ==
        "unknown option --hostfile; did you mean --hosts a,b or --host-discovery SCRIPT?");
  CHECK(error_of("--frobnicate train") == "unknown option --frobnicate; see ddprun --help all");
}

TEST_CASE("Options: what only torchrun's own inside understands is refused with what to do",
          "[options]") {
  CHECK(error_of("--logs-specs mine t").find("--redirects, --tee") != std::string::npos);
  CHECK(error_of("--event-log-handler null --logs-specs default t") == "(no error)");
}

TEST_CASE("Options: torchrun's handlers of events are accepted, and console prints decisions",
          "[options]") {
  CHECK(options_of("--event-log-handler console t").verbosity == Verbosity::kVerbose);
  CHECK(options_of("--event_log_handler=null t").verbosity == Verbosity::kNormal);
  CHECK(options_of("--event-log-handler dynamic_rendezvous t").verbosity == Verbosity::kNormal);
  CHECK(options_of("--event-log-handler console --quiet t").verbosity == Verbosity::kQuiet);
  CHECK(options_of("--event-log-handler null --verbose t").verbosity == Verbosity::kVerbose);
  CHECK(error_of("--event-log-handler scuba t").find("dynamic_rendezvous") != std::string::npos);
}

TEST_CASE("Options: any beginning of a flag that only one flag has stands for it", "[options]") {
  CHECK(options_of("--nn 2 --nproc-per-node=3 train").nnodes == NodeRange{2, 2});
  CHECK(options_of("--nproc-per 2 train").nproc_per_node.number == 2);
  CHECK(options_of("--nproc_per=2 train").nproc_per_node.number == 2);
  CHECK(options_of("--nproc_per=2 --nproc-p 3 train").nproc_per_node.number == 3);
  CHECK(options_of("--max-r 2 train").max_restarts == 2);
  CHECK(options_of("--max_r=2 train").max_restarts == 2);
  CHECK(options_of("--rdzv-end H:1 train").rdzv_endpoint == Endpoint{"H", 1});
  CHECK(options_of("--virt train").virtual_local_rank);
  CHECK(options_of("--stand --nn=1 --mod train").standalone);
  CHECK(options_of("--nn=1 --stand --te 3 --mod --ro=x train -x --nn 3").program == "train");
  CHECK(options_of("--nn=1 --ro=a=b train --nn 3").role == "a=b");
  CHECK(options_of("train --stand").program_arguments == Words{"--stand"});
  CHECK_FALSE(options_of("-- train --stand").standalone);
  CHECK(error_of("--nn") == "--nnodes needs a value: N|MIN:MAX");
  CHECK(error_of("--nproc-per") == "--nproc-per-node needs a value: N|auto|gpu|cpu");
}

TEST_CASE("Options: a beginning that several flags have is refused with all of them", "[options]") {
  CHECK(error_of("--master=h train") ==
        "option --master is ambiguous: --master-addr or --master-port?");
  CHECK(error_of("--log_ x train").starts_with("option --log_ is ambiguous: --log-dir, --log-l"));
  CHECK(error_of("--bending train") == "unknown option --bending; see ddprun --help all");
}

TEST_CASE("Options: of every flag, each beginning is that flag, ambiguous, or another's name",
          "[options]") {
  for (const Option& flag : all_options()) {
    if (flag.value.empty()) continue;
    const std::string whole(flag.name);
    for (std::size_t length = 1; length < whole.size(); ++length) {
      const std::string typed = whole.substr(0, length);
      const auto begins = [&](const Option& f) { return f.name.starts_with(typed); };
      const auto flags = std::ranges::count_if(all_options(), begins);
      INFO(typed);
      if (find_option(all_options(), typed) != nullptr) continue;
      for (const std::string& spelled : {typed, underscored(typed)}) {
        const std::string expected = flags == 1 ? "--" + whole + " needs a value"
                                                : "option --" + spelled + " is ambiguous: --";
        CHECK(error_of("--" + spelled).starts_with(expected));
      }
    }
  }
}

TEST_CASE("Options: a value or the program that is missing is said", "[options]") {
  CHECK(error_of("train --nnodes") == "(no error)");
  CHECK(error_of("--nnodes") == "--nnodes needs a value: N|MIN:MAX");
  CHECK(error_of("--standalone --nproc_per_node") ==
        "--nproc-per-node needs a value: N|auto|gpu|cpu");
  CHECK(error_of("-r") == "--redirects needs a value: 0-3|RANK:N,...");
  CHECK(error_of("").starts_with("no program given"));
  CHECK(error_of("--standalone").starts_with("no program given"));
  CHECK(error_of("--").starts_with("no program given"));
}

TEST_CASE("Options: flags that exclude each other", "[options]") {
  CHECK(error_of("-m --no-python t").starts_with("--module and --no-python exclude each other"));
  CHECK(error_of("-v --quiet t") == "--verbose and --quiet exclude each other");
}

TEST_CASE("Options: a typed flag that needs another is refused without it", "[options]") {
  CHECK(error_of("--bundle-every 5 t") == "--bundle-every needs --bundle-folder");
  CHECK(error_of("--bundle-folder= --bundle-every 5 t") == "--bundle-every needs --bundle-folder");
  CHECK(error_of("--http-address ::1 t") == "--http-address needs --http-port");
  const Environment folder{{"PET_BUNDLE_FOLDER", "/b"}};
  CHECK(options_of("--bundle-every 5 t", folder).exported.at("DDPRUN_BUNDLE_EVERY") == "5");
  const Options of_variable = options_of("t", {{"PET_HTTP_ADDRESS", "::1"}});
  CHECK(of_variable.pages.address == "::1");
  CHECK(of_variable.given.empty());  // Other nodes are not given it, typed.
  CHECK(options_of("--bundle-every= t").exported.empty());
}

TEST_CASE("Options: help and version win over everything else that is wrong", "[options]") {
  const auto text = [](const std::string& line) {
    return std::get<PrintAndExit>(parse_line(line).value()).text;
  };
  CHECK(text("--help").starts_with("usage: ddprun "));
  CHECK(text("--nnodes x -h").starts_with("usage: ddprun "));
  CHECK(text("--help").find("--numa-binding") == std::string::npos);
  for (const char* all : {"--help all", "--help=all", "-h all"}) {
    CHECK(text(all).find("--numa-binding") != std::string::npos);
  }
  CHECK(text("--version").starts_with("ddprun "));
  CHECK(text("--print-completion bash").find("complete -o filenames -F _ddprun ddprun") !=
        std::string::npos);
  CHECK(text("--print-completion=zsh").starts_with("#compdef ddprun"));
  CHECK(text("--print-completion tcsh").find("complete ddprun") != std::string::npos);
  CHECK(error_of("--print-completion fish") == "--print-completion 'fish': give bash, zsh or tcsh");
}

TEST_CASE("Options: what was given can be repeated", "[options]") {
  const Options options = options_of("-m --nnodes=2 -r 1 x", {{"PET_MAX_RESTARTS", "4"}});
  std::string line;
  for (const GivenOption& option : options.given) {
    line += option.flag + (option.value ? "=" + *option.value : "") + " ";
  }
  CHECK(line == "--nnodes=2 --max-restarts=4 --module --redirects=1 ");
  CHECK(options_of("--use-env=0 x").given.front().flag == "--use-env=0");
}

}  // namespace
}  // namespace ddprun::launcher
