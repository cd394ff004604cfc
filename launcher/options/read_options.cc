#include "launcher/options/read_options.h"

#include <csignal>
#include <initializer_list>
#include <utility>

#include "common/text/screen.h"
#include "launcher/options/flags.h"
#include "launcher/options/hosts.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

// `text` in quotes as part of an error: one line, not endless, nothing that a terminal would obey.
std::string shown(std::string_view text) {
  constexpr std::size_t kShownMax = 80;
  return "'" + plain_line(first_columns(text, kShownMax)) +
         (text_columns(text) > kShownMax ? "...'" : "'");
}

Result<int> threads_or_auto(std::string_view text) {
  const auto number = text == "auto" ? Result<int>(0) : parse_integer(text, 1, 4096);
  return number ? number : Result<int>(usage("give auto, or a whole number from 1 to 4096"));
}

// Hands each option to its parser and keeps the first failure: a list of reads stays a list.
class Reader {
 public:
  Reader(const RawOptions& raw, const Environment& environment)
      : raw_(raw), environment_(environment) {}

  // The text that was given for `flag`. An empty one is as good as none: scripts write --x="$X".
  const std::string* text(std::string_view flag) {
    const auto typed = raw_.values.find(flag);
    if (typed != raw_.values.end()) return typed->second.empty() ? nullptr : &typed->second;
    const auto inherited = environment_.find(pet_variable(flag));
    const bool is_set = inherited != environment_.end() && !inherited->second.empty();
    return is_set ? &inherited->second : nullptr;
  }

  template <class Target, class Parser>
  void read(std::string_view flag, Target& target, const Parser& parser) {
    const std::string* given = text(flag);
    if (given == nullptr || failure_) return;
    const auto value = parser(*given);
    if (value) {
      target = *value;
      repeat(flag, *given);
    } else {
      const bool is_typed = raw_.values.contains(flag);
      const std::string name = is_typed ? "--" + std::string(flag) : pet_variable(flag);
      failure_ = usage(name + " " + shown(*given) + ": " + value.error().context);
    }
  }

  // A default from a variable that is not one of PET_*, where neither the flag nor its PET_* is
  // given.
  template <class Target, class Parser>
  void read_variable(std::string_view variable, std::string_view flag, Target& target,
                     const Parser& parser) {
    if (!text(flag) && read_lone_variable(variable, target, parser)) {
      repeat(flag, value_of(environment_, variable));
    }
  }

  // The same for a variable that stands for no flag; whether it was set.
  template <class Target, class Parser>
  bool read_lone_variable(std::string_view variable, Target& target, const Parser& parser) {
    const std::string given = value_of(environment_, variable);
    if (given.empty() || failure_) return false;
    const auto value = parser(given);
    if (value) return target = *value, true;
    failure_ = usage(std::string(variable) + " " + shown(given) + ": " + value.error().context);
    return false;
  }

  // From a variable that is not set: never run it all here.
  void refuse_empty(const std::string& flag, const std::string& cure) {
    if (!raw_.values.contains(flag) || !raw_.values.at(flag).empty()) return;
    fail("--" + flag + " is empty: " + cure + ", or leave the flag out to run on this machine");
  }

  void read_switch(std::string_view flag, bool& target) {
    read(flag, target, [](const std::string& given) { return parse_switch(given); });
  }

  void fail(std::string sentence) {
    if (!failure_) failure_ = usage(std::move(sentence));
  }

  const std::optional<Failure>& failure() const { return failure_; }
  const std::vector<GivenOption>& given() const { return given_; }

 private:
  void repeat(std::string_view flag, const std::string& text) {
    const std::string name = "--" + std::string(flag);
    const bool is_switch = find_flag(flag)->value.empty();
    if (!is_switch) given_.push_back({name, text});
    if (is_switch) given_.push_back({*parse_switch(text) ? name : name + "=0", std::nullopt});
  }

  const RawOptions& raw_;
  const Environment& environment_;
  std::vector<GivenOption> given_;
  std::optional<Failure> failure_;
};

Result<std::string> any_text(const std::string& text) { return text; }

auto integer_between(int min, int max) {
  return [=](const std::string& text) { return parse_integer(text, min, max); };
}

template <class Value>
auto one_of(std::initializer_list<std::pair<const char*, Value>> words) {
  std::map<std::string, Value> known(words.begin(), words.end());
  return [known = std::move(known)](const std::string& text) -> Result<Value> {
    if (const auto found = known.find(text); found != known.end()) return found->second;
    std::string list;
    for (const auto& [word, value] : known) list += (list.empty() ? "" : " or ") + word;
    return usage("give " + list);
  };
}

Result<RdzvBackend> parse_backend(const std::string& text) {
  if (text == "c10d") return RdzvBackend::kC10d;
  if (text == "static") return RdzvBackend::kStatic;
  return usage("give c10d or static; ddprun brings its own rendezvous daemon and needs no etcd");
}

auto only(const char* word, const char* why) {
  return [=](const std::string& text) {
    return text == word ? Result<std::string>(text)
                        : usage(std::string("give ") + word + "; " + why);
  };
}

void read_nodes(Reader& reader, Options& options) {
  reader.read_switch("standalone", options.standalone);
  reader.read("nnodes", options.nnodes, parse_nnodes);
  reader.read("nproc-per-node", options.nproc_per_node, parse_worker_count);
  reader.read("local-nodes", options.local_nodes, integer_between(1, 1024));
  reader.read("node-rank", options.node_rank, integer_between(0, kNodesMax - 1));
  reader.read("hosts", options.hosts, parse_hosts);
  reader.read("host-discovery", options.host_discovery, parse_words);
  reader.refuse_empty("hosts", "name the hosts");
  reader.refuse_empty("host-discovery", "name a script that prints the hosts");
  reader.read("host-discovery-period", options.host_discovery_period, parse_some_seconds);
  reader.read("ssh", options.ssh, parse_words);
  reader.read("env", options.env, parse_variable_names);
}

void read_meeting(Reader& reader, Options& options) {
  std::vector<Endpoint> endpoints;
  reader.read("rdzv-endpoint", endpoints, parse_endpoints);
  reader.read_variable("DDPRUN_ENDPOINT", "rdzv-endpoint", endpoints, parse_endpoints);
  if (!endpoints.empty()) {
    options.rdzv_endpoint = endpoints.front();
    options.other_endpoints.assign(endpoints.begin() + 1, endpoints.end());
  }
  reader.read("rdzv-backend", options.rdzv_backend, parse_backend);
  reader.read("rdzv-id", options.rdzv_id, parse_run_id);
  reader.read("rdzv-conf", options.rdzv_conf, parse_rdzv_conf);
  reader.read("master-addr", options.master_addr, any_text);
  reader.read("master-port", options.master_port, parse_port);
  reader.read("local-addr", options.local_addr, any_text);
  reader.read("token-file", options.token_file, any_text);
}

void read_failures(Reader& reader, Options& options) {
  reader.read("max-restarts", options.max_restarts, integer_between(0, kRestartsMax));
  reader.read("spares", options.spares, integer_between(0, kSparesMax));
  reader.read("min-ranks", options.min_ranks, integer_between(0, kMinRanksMax));
  reader.read("error-file", options.error_file, any_text);
  reader.read("signals-to-handle", options.signals_to_handle, parse_signals);
  reader.read("preempt-signal", options.preempt_signals, parse_signals);
  reader.read("shutdown-timeout", options.shutdown_timeout, parse_seconds);
  reader.read_variable("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "shutdown-timeout",
                       options.shutdown_timeout, parse_seconds);
  using Stall = agent::OnStall;
  reader.read("on-stall", options.stalls.on_stall,
              one_of<Stall>({{"off", Stall::kOff}, {"log", Stall::kLog}, {"kill", Stall::kKill}}));
  using enum Preflight;
  reader.read("preflight", options.preflight,
              one_of<Preflight>({{"off", kOff}, {"fast", kFast}, {"full", kFull}}));
  reader.read("stall-timeout", options.stalls.timeout, parse_some_seconds);
  reader.read("chaos", options.chaos, parse_chaos);
  reader.read_lone_variable("DDPRUN_CHAOS_SEED", options.chaos_seed, parse_seed);
}

void read_program(Reader& reader, Options& options) {
  reader.read_switch("module", options.module);
  reader.read_switch("no-python", options.no_python);
  reader.read_switch("run-path", options.run_path);
  reader.read_switch("use-env", options.use_env);
  reader.read_switch("virtual-local-rank", options.virtual_local_rank);
  reader.read_switch("oversubscribe-gpu", options.oversubscribe_gpu);
  using agent::NumaBinding;
  reader.read("numa-binding", options.numa_binding,
              one_of<NumaBinding>({{"none", NumaBinding::kNone},
                                   {"node", NumaBinding::kNode},
                                   {"socket", NumaBinding::kSocket},
                                   {"exclusive", NumaBinding::kExclusive},
                                   {"core-complex", NumaBinding::kCoreComplex}}));
  reader.read("omp-num-threads", options.omp_num_threads, threads_or_auto);
  reader.read("role", options.role, any_text);
  if (options.module && options.no_python) {
    reader.fail("--module and --no-python exclude each other: a module needs Python");
  }
  if (options.module && options.run_path) {
    reader.fail("--module and --run-path exclude each other: one takes a name, the other a file");
  }
  // Accepted so that command lines written for torchrun work; there is nothing for them to change.
  std::optional<Milliseconds> interval;
  reader.read("monitor-interval", interval, parse_seconds);
  std::optional<int> method;
  reader.read("start-method", method, one_of<int>({{"spawn", 0}, {"fork", 1}, {"forkserver", 2}}));
  std::optional<std::string> specs;
  reader.read(
      "logs-specs", specs,
      only("default",
           "it names a Python class inside torchrun, and ddprun has no Python inside: "
           "--log-dir, --redirects, --tee and --local-ranks-filter select where output goes"));
}

void read_output(Reader& reader, Options& options) {
  reader.read("log-dir", options.log_dir, any_text);
  reader.read("redirects", options.output.redirects, parse_stream_map);
  reader.read("tee", options.output.tee, parse_stream_map);
  reader.read("local-ranks-filter", options.output.local_ranks_filter, parse_local_ranks);
  reader.read("log-line-prefix-template", options.output.prefix_template, any_text);
  reader.read_variable("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE", "log-line-prefix-template",
                       options.output.prefix_template, any_text);
  reader.read("duplicate-stdout-filters", options.output.stdout_needles, parse_needles);
  reader.read("duplicate-stderr-filters", options.output.stderr_needles, parse_needles);
  reader.read("log-rotate", options.output.rotation, parse_rotation);
  reader.read("log-format", options.log_format,
              one_of<agent::LineFormat>(
                  {{"text", agent::LineFormat::kText}, {"json", agent::LineFormat::kJson}}));
  reader.read_switch("fold-lines", options.fold_lines);
  bool verbose = false, quiet = false;
  reader.read_switch("verbose", verbose);
  reader.read_switch("quiet", quiet);
  if (verbose && quiet) reader.fail("--verbose and --quiet exclude each other");
  // torchrun's events are what its agents and workers have come to: so are our decisions.
  enum class Handler { kNull, kConsole };
  std::optional<Handler> events;
  reader.read("event-log-handler", events,
              one_of<Handler>({{"null", Handler::kNull},
                               {"console", Handler::kConsole},
                               {"dynamic_rendezvous", Handler::kNull}}));
  if (quiet) options.talk = Talk::kQuiet;
  if (verbose || (events == Handler::kConsole && !quiet)) options.talk = Talk::kVerbose;
  reader.read_switch("report", options.report);
  reader.read("report-html", options.report_html, any_text);
  reader.read_switch("dry-run", options.dry_run);
}

}  // namespace

std::string to_string(const WorkerCount& count) {
  switch (count.kind) {
    case WorkerCount::Kind::kAuto: return "auto";
    case WorkerCount::Kind::kGpu: return "gpu";
    case WorkerCount::Kind::kCpu: return "cpu";
    case WorkerCount::Kind::kNumber: break;
  }
  return std::to_string(count.number);
}

std::string to_string(const NodeRange& range) {
  const std::string max = std::to_string(range.max);
  return range.min == range.max ? max : std::to_string(range.min) + ":" + max;
}

std::string to_string(const Endpoint& endpoint) {
  const bool brackets = endpoint.host.find(':') != std::string::npos;
  std::string text = brackets ? "[" + endpoint.host + "]" : endpoint.host;
  if (endpoint.port) text += ":" + std::to_string(*endpoint.port);
  return text;
}

Result<Options> read_options(const RawOptions& raw, const Environment& environment) {
  Options options;
  Reader reader(raw, environment);
  read_nodes(reader, options);
  read_meeting(reader, options);
  read_failures(reader, options);
  read_program(reader, options);
  read_output(reader, options);
  options.given = reader.given();
  if (reader.failure()) return *reader.failure();
  if (const auto failure = contradiction_of_hosts(options)) return *failure;
  if (raw.rest.empty()) {
    return usage("no program given: ddprun [options] PROGRAM [its arguments], see ddprun --help");
  }
  options.program = raw.rest.front();
  options.program_arguments.assign(raw.rest.begin() + 1, raw.rest.end());
  return options;
}

}  // namespace ddprun::launcher
