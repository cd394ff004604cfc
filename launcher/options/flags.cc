#include "launcher/options/flags.h"

#include <algorithm>
#include <sstream>

#include "common/bundle.h"
#include "launcher/options/help.h"
#include "launcher/options/hosts.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

using agent::LineFormat;
using agent::NumaBinding;
using agent::OutputChoice;
using Stall = agent::OnStall;
using enum Preflight;

// torchrun's events report the states of its agents and workers, as ddprun's decisions do.
enum class Handler { kNull, kConsole };

// Options, and values that only together become a member of it.
struct Draft : Options {
  bool verbose = false;
  bool quiet = false;
  Handler events = Handler::kNull;
};

constexpr std::string_view kSignalWords = ",SIGTERM SIGINT SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGALRM";

template <class Value>
auto output(Value OutputChoice::*member) {
  return inner<Options>(&Options::output, member);
}

// For the code of workers alone: a variable in their environment.
auto exported(const char* variable) {
  return [=](Draft& options, const auto& value) { options.exported[variable] = value_text(value); };
}

void store_endpoints(Draft& options, std::vector<Endpoint> endpoints) {
  options.rdzv_endpoint = endpoints.front();
  options.other_endpoints.assign(endpoints.begin() + 1, endpoints.end());
}

// Accepted so that command lines written for torchrun work; they change nothing here.
constexpr auto kNowhere = [](Draft&, const auto&) {};

Result<RdzvBackend> parse_backend(std::string_view text) {
  if (text == "c10d") return RdzvBackend::kC10d;
  if (text == "static") return RdzvBackend::kStatic;
  return usage("give c10d or static; ddprun brings its own rendezvous daemon and needs no etcd");
}

Result<int> threads_or_auto(std::string_view text) {
  const auto number = text == "auto" ? Result<int>(0) : parse_integer(text, 1, 4096);
  return number ? number : Result<int>(usage("give auto, or a whole number from 1 to 4096"));
}

auto only(const char* word, const char* why) {
  return [=](std::string_view text) {
    return text == word ? any_text(text) : usage(std::string("give ") + word + "; " + why);
  };
}

const OptionTable<Draft>& ddprun_table() {
  static const OptionTable<Draft> kTable = {
      {"Nodes and workers",
       {
           {"standalone",
            &Options::standalone,
            "a run of one node, without configuration",
            {.often_used = true}},
           {"nnodes",
            &Options::nnodes,
            parse_nnodes,
            "N|MIN:MAX",
            "number of nodes [1]",
            {.often_used = true}},
           {"nproc-per-node",
            &Options::nproc_per_node,
            parse_worker_count,
            "N|auto|gpu|cpu",
            "workers on each node [1]",
            {.often_used = true}},
           {"local-nodes",
            &Options::local_nodes,
            integer_between(1, 1024),
            "N",
            "simulate N nodes on this machine [off]",
            {.often_used = true}},
           {"hosts",
            &Options::hosts,
            parse_hosts,
            "HOST[:N],...",
            "start a node on each host by ssh, with N workers",
            {.often_used = true, .if_empty = "name the hosts"}},
           {"host-discovery",
            &Options::host_discovery,
            parse_words,
            "SCRIPT",
            "the same on the hosts that SCRIPT lists, run repeatedly",
            {.if_empty = "name a script that prints the hosts", .words = "@file"}},
           {"host-discovery-period", &Options::host_discovery_period, parse_some_seconds, "SECONDS",
            "time from the end of SCRIPT to its next run [5]"},
           {"ssh", &Options::ssh, parse_words, "COMMAND",
            "ssh command for --hosts: 'ssh -i KEY -p 2222' [ssh]"},
           {"env", &Options::env, parse_variable_names, "NAME,...",
            "further variables that --hosts transfers"},
           {"node-rank",
            &Options::node_rank,
            integer_between(0, kNodesMax - 1),
            "N",
            "group rank of this node [order of arrival]",
            {.often_used = true, .of_one_run = true}},
       }},
      {"How nodes find each other",
       {
           {"rdzv-endpoint",
            store_endpoints,
            parse_endpoints,
            "HOST[:PORT][,..]",
            "address of the daemon; [V6]:PORT too [port 29400]",
            {.often_used = true, .variable = "DDPRUN_ENDPOINT"}},
           {"rdzv-id",
            &Options::rdzv_id,
            parse_run_id,
            "ID",
            "name of the run, equal on all nodes [none; alone: a new one]",
            {.often_used = true, .of_one_run = true}},
           {"rdzv-backend", &Options::rdzv_backend, parse_backend, "c10d|static",
            "static: node rank 0 hosts at --master-addr [c10d]"},
           {"rdzv-conf", &Options::rdzv_conf, parse_rdzv_conf, "K=V,...",
            "join_timeout=600, auth=none, ... (docs/environment.md)"},
           {"token-file",
            &Options::token_file,
            any_text,
            "FILE",
            "file with the run's token [$DDPRUN_TOKEN]",
            {.often_used = true, .settled_by = "DDPRUN_TOKEN DDPRUN_TOKEN_FILE"}},
           {"local-addr",
            &Options::local_addr,
            any_text,
            "ADDR",
            "address of this node for the other nodes",
            {.of_one_run = true}},
           {"advertise-addr",
            &Options::advertise_addr,
            any_text,
            "ADDR",
            "the same, if it is a router's that leads here (NAT)",
            {.of_one_run = true}},
           {"http-port",
            inner<Options>(&Options::pages, &DaemonPages::port),
            parse_port,
            "PORT",
            "pages and metrics of the daemon that this node hosts [none]",
            {.excludes = "standalone"}},
           {"http-address",
            inner<Options>(&Options::pages, &DaemonPages::address),
            any_text,
            "ADDR",
            "their address; the token does not protect them [127.0.0.1]",
            {.needs = "http-port"}},
           {"master-addr", &Options::master_addr, any_text, "ADDR",
            "host of node rank 0, as with torchrun"},
           {"master-port", &Options::master_port, parse_port, "PORT",
            "port of node rank 0, as with torchrun"},
           {"port-range",
            &Options::port_range,
            parse_port_range,
            "A-B",
            "ports of all else that ddprun opens on this node [any]",
            {.variable = kPortRangeVariable}},
           {"one-port",
            &Options::one_port,
            "nodes reach only the endpoint's port: all goes through it",
            {.excludes = "standalone"}},
       }},
      {"When something fails",
       {
           {"max-restarts",
            &Options::max_restarts,
            integer_between(0, kRestartsMax),
            "N",
            "restarts of all workers before giving up [0]",
            {.often_used = true}},
           {"spares", &Options::spares, integer_between(0, kSparesMax), "N",
            "extra workers per node, ready to replace one that ends [0]"},
           {"min-ranks", &Options::min_ranks, integer_between(0, kMinRanksMax), "N",
            "with fewer ranks the run waits for others [1]"},
           {"audit", exported(kAuditVariable), parse_audit, "PERCENT",
            "percent of an elastic job's shards that two hosts compute"},
           {"bundle-folder",
            &Options::bundle_folder,
            any_text,
            "DIR",
            "keeps an elastic job's failed steps, for ddprun replay",
            {.words = "@dir"}},
           {"bundle-every",
            exported(kBundleEveryVariable),
            integer_between(1, kBundleEveryMax),
            "STEPS",
            "also keeps the state each so many steps, for replay --bisect",
            {.needs = "bundle-folder"}},
           {"shutdown-timeout",
            &Options::shutdown_timeout,
            parse_seconds,
            "SECONDS",
            "time from SIGTERM to SIGKILL for workers [30]",
            {.often_used = true, .variable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"}},
           {"signals-to-handle",
            &Options::signals_to_handle,
            parse_signals,
            "SIG,...",
            "signals that end the run [SIGTERM,SIGINT,SIGHUP,SIGQUIT]",
            {.words = kSignalWords}},
           {"preempt-signal",
            &Options::preempt_signals,
            parse_signals,
            "SIG,...",
            "signals that announce this node's end; it exits with 75",
            {.words = kSignalWords}},
           {"on-stall", inner<Options>(&Options::stalls, &agent::StallPolicy::on_stall),
            one_of<Stall>({{"off", Stall::kOff}, {"log", Stall::kLog}, {"kill", Stall::kKill}}),
            "log|kill|off", "action for a worker that is alive but stuck [log]"},
           {"stall-timeout", inner<Options>(&Options::stalls, &agent::StallPolicy::timeout),
            parse_some_seconds, "SECONDS", "shortest time after which a worker is stuck [180]"},
           {"preflight", &Options::preflight,
            one_of<Preflight>({{"off", kOff}, {"fast", kFast}, {"full", kFull}}), "off|fast|full",
            "check each node while workers start, or before it joins [off]"},
           {"chaos", &Options::chaos, parse_chaos, "SECONDS",
            "kill a random worker this often on average, as a trial [off]"},
           {"error-file",
            &Options::error_file,
            any_text,
            "FILE",
            "write the verdict of a failed run as JSON to FILE",
            {.often_used = true}},
       }},
      {"The program",
       {
           {"module",
            &Options::module,
            "PROGRAM is a Python module",
            {.letter = 'm', .often_used = true}},
           {"no-python", &Options::no_python, "execute PROGRAM even if it ends in .py"},
           {"run-path", &Options::run_path, "run PROGRAM with Python's runpy.run_path"},
           {"use-env", &Options::use_env, "accepted; --use-env=0 also passes --local-rank=N first"},
           {"role", &Options::role, any_text, "NAME", "role of these workers [default]"},
           {"virtual-local-rank", &Options::virtual_local_rank,
            "each worker sees LOCAL_RANK=0 and only its own GPU"},
           {"oversubscribe-gpu", &Options::oversubscribe_gpu,
            "let several workers share a GPU (tests only)"},
           {"preload", &Options::preload, parse_preload, "auto|off|MODULE,...",
            "fork Python workers from a process that has imported [off]"},
           {"preload-keep", &Options::preload_keep, integer_between(0, kPreloadKeepMax), "MINUTES",
            "keep what was imported so long for this user's next run [0]"},
           {"stdin",
            &Options::stdin_for,
            parse_stdin,
            "RANK|all|none",
            "which local rank has ddprun's standard input [0]",
            {.words = "0 all none"}},
           {"memory-folder",
            &Options::memory_folder,
            parse_memory_folder,
            "SIZE[,...]",
            "memory of each node for files that outlive its workers [off]",
            {.words = "256M 1G 4G 4G,copies=off"}},
           {"numa-binding",
            &Options::numa_binding,
            one_of<NumaBinding>({{"none", NumaBinding::kNone},
                                 {"node", NumaBinding::kNode},
                                 {"socket", NumaBinding::kSocket},
                                 {"exclusive", NumaBinding::kExclusive},
                                 {"core-complex", NumaBinding::kCoreComplex}}),
            "MODE",
            "node, socket, exclusive or core-complex of the GPU [none]",
            {.words = "none node socket exclusive core-complex"}},
           {"omp-num-threads", &Options::omp_num_threads, threads_or_auto, "N|auto",
            "OMP_NUM_THREADS; auto: the worker's cores"},
       }},
      {"Output",
       {
           {"log-dir",
            &Options::log_dir,
            any_text,
            "DIR",
            "folder for the files of -r and -t [a new folder]",
            {.often_used = true}},
           {"redirects",
            output(&OutputChoice::redirects),
            parse_stream_map,
            "0-3|RANK:N,...",
            "write to files only: 1 stdout, 2 stderr, 3 both [0]",
            {.letter = 'r', .often_used = true, .words = "0 1 2 3"}},
           {"tee",
            output(&OutputChoice::tee),
            parse_stream_map,
            "0-3|RANK:N,...",
            "write to files and the terminal [0]",
            {.letter = 't', .often_used = true, .words = "0 1 2 3"}},
           {"local-ranks-filter", output(&OutputChoice::local_ranks_filter), parse_local_ranks,
            "RANK,...", "print only these local ranks [all]"},
           {"log-line-prefix-template",
            output(&OutputChoice::prefix_template),
            any_text,
            "TEXT",
            "from ${role_name} ${rank} ${local_rank} ${hostname}",
            {.variable = "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", .takes_empty = true}},
           {"duplicate-stdout-filters", output(&OutputChoice::stdout_needles), parse_needles,
            "TEXT,...", "also write teed lines that contain a TEXT to one file"},
           {"duplicate-stderr-filters", output(&OutputChoice::stderr_needles), parse_needles,
            "TEXT,...", "the same for stderr"},
           {"log-rotate",
            output(&OutputChoice::rotation),
            parse_rotation,
            "SIZE[:COUNT]",
            "a new log file every SIZE (100M), keep COUNT old ones [off:5]",
            {.words = "10M 100M 1G 100M:9"}},
           {"log-format", &Options::log_format,
            one_of<LineFormat>({{"text", LineFormat::kText}, {"json", LineFormat::kJson}}),
            "text|json", "json: one object per line, also for ddprun's lines [text]"},
           {"fold-lines", &Options::fold_lines,
            "print equal lines of several ranks once: [0-7] x8: text"},
           {"report",
            &Options::report,
            "print a table of each rank's time at the end",
            {.often_used = true}},
           {"report-html", &Options::report_html, any_text, "FILE",
            "write a page that shows where all ranks' time went"},
           {"verbose", &Draft::verbose, "log every decision", {.letter = 'v', .often_used = true}},
           {"quiet", &Draft::quiet, "print warnings and errors only", {.often_used = true}},
       }},
      {"Other",
       {
           {"dry-run",
            &Options::dry_run,
            "print what would run where, and exit",
            {.often_used = true, .of_one_run = true}},
           {"monitor-interval", kNowhere, parse_seconds, "SECONDS",
            "accepted and unused: nothing polls"},
           {"start-method",
            kNowhere,
            one_of<int>({{"spawn", 0}, {"fork", 1}, {"forkserver", 2}}),
            "METHOD",
            "accepted and unused: workers are programs",
            {.words = "spawn fork forkserver"}},
           {"event-log-handler",
            &Draft::events,
            one_of<Handler>({{"null", Handler::kNull},
                             {"console", Handler::kConsole},
                             {"dynamic_rendezvous", Handler::kNull}}),
            "HANDLER",
            "console: log every decision; others: accepted, unused",
            {.words = "null console dynamic_rendezvous"}},
           {"logs-specs", kNowhere,
            only("default",
                 "it names a Python class inside torchrun, and ddprun has no Python inside: "
                 "--log-dir, --redirects, --tee and --local-ranks-filter select where output goes"),
            "default", "accepted: see --log-dir, -r and -t"},
           {"print-completion", PrintsAndEnds{}, "bash|zsh|tcsh", "print a completion script"},
           {"version", PrintsAndEnds{}, "", "print the version", {.often_used = true}},
           {"help",
            PrintsAndEnds{},
            "",
            "print the most used flags; --help all: all flags",
            {.letter = 'h', .often_used = true}},
       }},
  };
  return kTable;
}

// The value of an option, from the command line, else PET_*, else another variable. An empty text
// counts as none: scripts write --x="$X".
std::optional<OptionValue> given_value(const Option& option, const OptionValue* typed,
                                       const Environment& environment) {
  if (typed && (!typed->text.empty() || option.takes_empty)) return *typed;
  const std::string pet = pet_variable(option.name);
  if (!typed && !value_of(environment, pet).empty()) {
    return OptionValue{&option, pet, value_of(environment, pet)};
  }
  const std::string text = value_of(environment, option.variable);
  if (text.empty()) return std::nullopt;
  return OptionValue{&option, std::string(option.variable), text};
}

// As it can be typed again.
GivenOption repeated(const OptionValue& value) {
  const std::string name = long_name(*value.option);
  if (value.option->kind == Option::Kind::kValue) return {name, value.text};
  return {*parse_switch(value.text) ? name : name + "=0", std::nullopt};
}

// A typed option without one that it needs is refused; one that a variable has given is left out of
// what other nodes are given.
std::optional<Failure> settle_needs(Draft& draft, const CommandLine& line) {
  const auto is_given = [&](const std::string& flag) {
    return std::ranges::find(draft.given, flag, &GivenOption::flag) != draft.given.end();
  };
  for (const Option& option : all_options()) {
    std::istringstream needs{std::string(option.needs)};
    for (std::string name; is_given(long_name(option)) && needs >> name;) {
      if (is_given("--" + name)) continue;
      if (line.find(option.name)) return usage(long_name(option) + " needs --" + name);
      std::erase_if(draft.given, [&](const auto& one) { return one.flag == long_name(option); });
    }
  }
  return std::nullopt;
}

Result<Draft> read_values(const CommandLine& line, const Environment& environment) {
  Draft draft;
  for (const Option& option : all_options()) {
    if (option.kind == Option::Kind::kPrint) continue;
    const OptionValue* typed = line.find(option.name);
    if (typed && typed->text.empty() && !option.if_empty.empty()) {
      return usage(long_name(option) + " is empty: " + std::string(option.if_empty) +
                   ", or leave the flag out to run on this machine");
    }
    const auto given = given_value(option, typed, environment);
    if (!given) continue;
    if (const auto stored = ddprun_table().store(*given, draft); !stored) return stored.error();
    draft.given.push_back(repeated(*given));
  }
  if (const auto failure = settle_needs(draft, line)) return *failure;
  if (const std::string seed = value_of(environment, "DDPRUN_CHAOS_SEED"); !seed.empty()) {
    const auto parsed = parse_seed(seed);
    if (!parsed) {
      return usage("DDPRUN_CHAOS_SEED " + quoted_value(seed) + ": " + parsed.error().context);
    }
    draft.chaos_seed = *parsed;
  }
  return draft;
}

std::optional<Failure> contradiction(const Draft& options) {
  if (options.module && options.no_python) {
    return usage("--module and --no-python exclude each other: a module needs Python");
  }
  if (options.module && options.run_path) {
    return usage("--module and --run-path exclude each other: one takes a name, the other a file");
  }
  if (options.verbose && options.quiet) {
    return usage("--verbose and --quiet exclude each other");
  }
  return contradiction_of_hosts(options);
}

}  // namespace

std::span<const Option> all_options() { return ddprun_table().options(); }

std::vector<std::string> option_names() {
  std::vector<std::string> names;
  for (const Option& option : all_options()) names.push_back(long_name(option));
  return names;
}

std::vector<std::string> misspelled_variables(const Environment& environment) {
  constexpr std::string_view kPrefix = "PET_";
  std::vector<std::string> known;
  for (const Option& option : all_options()) {
    known.push_back(pet_variable(option.name).substr(kPrefix.size()));
  }
  std::vector<std::string> sentences;
  for (auto it = environment.lower_bound(kPrefix);
       it != environment.end() && it->first.starts_with(kPrefix); ++it) {
    const std::string name = it->first.substr(kPrefix.size());
    if (std::ranges::find(known, name) != known.end()) continue;
    const std::string meant = nearest(name, known);
    if (meant.empty()) continue;
    sentences.push_back(it->first + " is no variable of ddprun and has no effect; did you mean " +
                        std::string(kPrefix) + meant + "?");
  }
  return sentences;
}

Result<Options> read_options(const CommandLine& line, const Environment& environment) {
  Result<Draft> draft = read_values(line, environment);
  if (!draft) return draft.error();
  if (const auto failure = contradiction(*draft)) return *failure;
  if (line.rest.empty()) {
    return usage("no program given: ddprun [options] PROGRAM [its arguments], see ddprun --help");
  }
  const bool reports_events = draft->events == Handler::kConsole && !draft->quiet;
  if (draft->quiet) draft->verbosity = Verbosity::kQuiet;
  if (draft->verbose || reports_events) draft->verbosity = Verbosity::kVerbose;
  Options options = std::move(*draft);
  options.program = line.rest.front();
  options.program_arguments.assign(line.rest.begin() + 1, line.rest.end());
  return options;
}

}  // namespace ddprun::launcher
