// Every flag of torchrun 2.14 and of torch.distributed.launch, by a table: each spelling, attached
// and detached, and PET_* must give the same value, which is the table's.

#include "launcher/options/flags.h"

#include <catch2/catch.hpp>
#include <csignal>
#include <set>

#include "tests/support/command_line.h"

namespace ddprun::launcher {
namespace {

// One line of everything that a flag can change.
std::string text_of(const StreamMap& map) {
  std::string text = std::to_string(map.others);
  for (const auto& [rank, streams] : map.of_rank) {
    text += "," + std::to_string(rank) + ":" + std::to_string(streams);
  }
  return text;
}

template <class Value>
std::string text_of(const std::optional<Value>& value) {
  if (!value) return "-";
  if constexpr (std::is_same_v<Value, std::string>) {
    return *value;
  } else if constexpr (std::is_arithmetic_v<Value>) {
    return std::to_string(*value);
  } else {
    return to_string(*value);
  }
}

std::string meeting_text(const Options& o) {
  std::string text = " endpoint=" + text_of(o.rdzv_endpoint) + " id=" + text_of(o.rdzv_id);
  text += " backend=" + (o.rdzv_backend ? std::to_string(static_cast<int>(*o.rdzv_backend)) : "-");
  if (o.rdzv_conf.join_timeout) {
    text += " join=" + std::to_string(o.rdzv_conf.join_timeout->count());
  }
  return text + " master=" + text_of(o.master_addr) + ":" + text_of(o.master_port) +
         " local=" + text_of(o.local_addr);
}

std::string text_of(const Options& o) {
  std::string text = "nnodes=";
  if (o.nnodes) text += std::to_string(o.nnodes->min) + ":" + std::to_string(o.nnodes->max);
  text += " nproc=" + to_string(o.nproc_per_node) + " node_rank=" + text_of(o.node_rank);
  text += meeting_text(o) + " standalone=" + std::to_string(o.standalone);
  text += " restarts=" + std::to_string(o.max_restarts);
  text += " grace=" + std::to_string(o.shutdown_timeout.count()) + " signals=";
  for (const int signal : o.signals_to_handle) text += std::to_string(signal) + ",";
  text += " module=" + std::to_string(o.module) + " no_python=" + std::to_string(o.no_python);
  text += " run_path=" + std::to_string(o.run_path) + " use_env=" + std::to_string(o.use_env);
  text += " role=" + o.role + " virtual=" + std::to_string(o.virtual_local_rank);
  text += " log_dir=" + text_of(o.log_dir) + " redirects=" + text_of(o.output.redirects);
  text += " tee=" + text_of(o.output.tee) + " prefix=" + o.output.prefix_template + " filter=";
  for (const int rank : o.output.local_ranks_filter) {
    text += std::to_string(rank) + ",";
  }
  return text + ".";
}

struct Row {
  const char* flag;
  const char* value;   // Empty: a switch.
  const char* effect;  // A part of text_of(); empty: none is promised here.
};

// The 32 of torchrun 2.14 but for --print-completion, which prints; then the one that
// torch.distributed.launch has more.
constexpr Row kTorchruns[] = {
    {"nnodes", "2:4", "nnodes=2:4 "},
    {"nproc-per-node", "gpu", "nproc=gpu "},
    {"rdzv-backend", "c10d", "backend=0 "},
    {"rdzv-endpoint", "h:1", "endpoint=h:1 "},
    {"rdzv-id", "j7", "id=j7 "},
    {"rdzv-conf", "join_timeout=5", "join=5000 "},
    {"standalone", "", "standalone=1 "},
    {"max-restarts", "3", "restarts=3 "},
    {"monitor-interval", "0.5", "same"},
    {"start-method", "fork", "same"},
    {"event-log-handler", "null", "same"},
    {"role", "trainer", "role=trainer "},
    {"module", "", "module=1 "},
    {"no-python", "", "no_python=1 "},
    {"run-path", "", "run_path=1 "},
    {"log-dir", "/d", "log_dir=/d "},
    {"redirects", "0:1", "redirects=0,0:1 "},
    {"tee", "3", "tee=3 "},
    {"log-line-prefix-template", "${rank}", "prefix=${rank} "},
    {"local-ranks-filter", "0,2", "filter=0,2,."},
    {"duplicate-stdout-filters", "a,b", ""},
    {"duplicate-stderr-filters", "a,b", ""},
    {"node-rank", "1", "node_rank=1 "},
    {"master-addr", "m", "master=m:- "},
    {"master-port", "7", "master=-:7 "},
    {"local-addr", "::1", "local=::1 "},
    {"logs-specs", "default", "same"},
    {"numa-binding", "node", ""},
    {"signals-to-handle", "SIGUSR1", "signals=10, "},
    {"shutdown-timeout", "2.5", "grace=2500 "},
    {"virtual-local-rank", "", "virtual=1 "},
    {"use-env", "", "same"},
};

std::string text_of_words(std::vector<std::string> words, const Environment& environment = {}) {
  words.push_back("train");
  const auto outcome = parse_words(words, environment);
  return outcome ? text_of(std::get<Options>(*outcome)) : outcome.error().context;
}

std::set<std::string> all_ways(const Row& row) {
  std::set<std::string> ways;
  const std::string value = row.value;
  for (const std::string& spelled : {std::string(row.flag), underscored(row.flag)}) {
    const std::string flag = "--" + spelled;
    if (value.empty()) {
      ways.insert(text_of_words({flag}));
      ways.insert(text_of_words({flag + "=1"}));
    } else {
      ways.insert(text_of_words({flag, value}));
      ways.insert(text_of_words({flag + "=" + value}));
      ways.insert(text_of_words({flag, "nonsense", flag, value}));  // The last one counts.
    }
  }
  const Option* flag = find_option(all_options(), row.flag);
  if (flag->letter != '\0') {
    const std::string letter = {'-', flag->letter};
    ways.insert(value.empty() ? text_of_words({letter}) : text_of_words({letter, value}));
    if (!value.empty()) ways.insert(text_of_words({letter + value}));
  }
  ways.insert(text_of_words({}, {{pet_variable(row.flag), value.empty() ? "1" : value}}));
  return ways;
}

TEST_CASE("Flags: every one of torchrun's, in every spelling, says the same", "[options]") {
  const std::string defaults = text_of_words({});
  CHECK(std::size(kTorchruns) + 1 == 32 + 1);  // And --print-completion; and --use-env.
  for (const Row& row : kTorchruns) {
    INFO(row.flag);
    const Option* flag = find_option(all_options(), row.flag);
    REQUIRE(flag != nullptr);
    CHECK(flag->value.empty() == std::string(row.value).empty());
    const std::set<std::string> ways = all_ways(row);
    INFO(*ways.begin() << "\n" << *ways.rbegin());
    CHECK(ways.size() == 1);
    const std::string effect = row.effect;
    if (effect == "same") CHECK(*ways.begin() == defaults);
    if (effect == "same" || effect.empty()) continue;
    CHECK(ways.begin()->find(effect) != std::string::npos);
    CHECK(defaults.find(effect) == std::string::npos);
  }
}

TEST_CASE("Flags: a switch can be turned off, and the command line wins over PET", "[options]") {
  const std::string defaults = text_of_words({});
  for (const Row& row : kTorchruns) {
    INFO(row.flag);
    if (*row.value != '\0') continue;
    if (std::string(row.flag) == "use-env") continue;
    const std::string flag = "--" + std::string(row.flag);
    const std::string pet = pet_variable(row.flag);
    CHECK(text_of_words({flag + "=0"}, {{pet, "1"}}) == defaults);
    CHECK(text_of_words({}, {{pet, "0"}}) == defaults);
    CHECK(text_of_words({flag + "=maybe"}) == flag + " 'maybe': give 1 or 0");
  }
  CHECK(text_of_words({"--use-env=0"}).find("use_env=0 ") != std::string::npos);
  CHECK(text_of_words({"--use_env"}, {{"PET_USE_ENV", "0"}}) == defaults);
}

TEST_CASE("Flags: an empty value of any flag is none", "[options]") {
  const std::string defaults = text_of_words({});
  for (const Option& flag : all_options()) {
    if (flag.kind != Option::Kind::kValue) continue;
    INFO(flag.name);
    CHECK(text_of_words({}, {{pet_variable(flag.name), ""}}) == defaults);
    if (flag.name == "hosts" || flag.name == "host-discovery") continue;
    if (flag.takes_empty) continue;
    CHECK(text_of_words({"--" + std::string(flag.name) + "="}) == defaults);
  }
}

TEST_CASE("Flags: no hosts at all are refused, for the run would be here alone", "[options]") {
  const std::string refused =
      "--hosts is empty: name the hosts, or leave the flag out to run on this machine";
  CHECK(text_of_words({"--hosts="}) == refused);
  CHECK(text_of_words({"--hosts", ""}) == refused);
  CHECK(text_of_words({"--hosts", ""}, {{"PET_HOSTS", "a,b"}}) == refused);
  CHECK(text_of_words({"--hosts", ","}).starts_with("--hosts ',': give HOST"));
}

TEST_CASE("Flags: a variable that is nearly one of ours is named, another is not", "[options]") {
  const Environment environment = {{"PET_NPROC_PER_NODES", "2"},
                                   {"PET_MAXRESTARTS", "3"},
                                   {"PET_NNODES", "1"},
                                   {"PET_FOOD", "fish"},
                                   {"PETS", "1"},
                                   {"OET_NNODES", "1"}};
  CHECK(misspelled_variables(environment) ==
        std::vector<std::string>{"PET_MAXRESTARTS is no variable of ddprun and has no effect; did "
                                 "you mean PET_MAX_RESTARTS?",
                                 "PET_NPROC_PER_NODES is no variable of ddprun and has no effect; "
                                 "did you mean PET_NPROC_PER_NODE?"});
}

}  // namespace
}  // namespace ddprun::launcher
