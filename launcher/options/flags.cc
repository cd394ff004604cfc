#include "launcher/options/flags.h"

#include <algorithm>
#include <cctype>

namespace ddprun::launcher {
namespace {

using enum Flag::Kind;

constexpr std::string_view kNodes = "Nodes and workers";
constexpr std::string_view kMeeting = "How nodes find each other";
constexpr std::string_view kFailures = "When something fails";
constexpr std::string_view kProgram = "The program";
constexpr std::string_view kOutput = "Output";
constexpr std::string_view kOther = "Other";

constexpr Flag kFlags[] = {
    {kNodes, "standalone", '\0', kSwitch, "", "", "one node, nothing to configure"},
    {kNodes, "nnodes", '\0', kValue, "N|MIN:MAX", "", "how many nodes take part [1]"},
    {kNodes, "nproc-per-node", '\0', kValue, "N|auto|gpu|cpu", "auto gpu cpu",
     "workers on each node [1]"},
    {kNodes, "local-nodes", '\0', kValue, "N", "", "run N nodes here, as if on N machines [off]"},
    {kNodes, "hosts", '\0', kValue, "HOST[:N],...", "@hosts",
     "a node on each, by ssh; N workers on that one"},
    {kNodes, "ssh", '\0', kValue, "COMMAND", "",
     "ssh's command for --hosts: 'ssh -i KEY -p 2222' [ssh]"},
    {kNodes, "env", '\0', kValue, "NAME,...", "", "more variables that --hosts carries there"},
    {kNodes, "node-rank", '\0', kValue, "N", "", "group rank of this node [order of arrival]"},

    {kMeeting, "rdzv-endpoint", '\0', kValue, "HOST[:PORT][,..]", "",
     "where the nodes meet; [V6]:PORT too [port 29400]"},
    {kMeeting, "rdzv-id", '\0', kValue, "ID", "", "name of the run, equal on all nodes [none]"},
    {kMeeting, "rdzv-backend", '\0', kValue, "c10d|static", "c10d static",
     "static: node rank 0 hosts at --master-addr [c10d]"},
    {kMeeting, "rdzv-conf", '\0', kValue, "K=V,...", "",
     "join_timeout=600, auth=none, ... (docs/environment.md)"},
    {kMeeting, "token-file", '\0', kValue, "FILE", "@file",
     "file with the run's token [$DDPRUN_TOKEN]"},
    {kMeeting, "local-addr", '\0', kValue, "ADDR", "", "address of this node that the others use"},
    {kMeeting, "master-addr", '\0', kValue, "ADDR", "", "host of node rank 0, as with torchrun"},
    {kMeeting, "master-port", '\0', kValue, "PORT", "", "its port, as with torchrun"},

    {kFailures, "max-restarts", '\0', kValue, "N", "",
     "restarts of all workers before giving up [0]"},
    {kFailures, "shutdown-timeout", '\0', kValue, "SECONDS", "",
     "from SIGTERM to SIGKILL for workers [30]"},
    {kFailures, "signals-to-handle", '\0', kValue, "SIG,...",
     ",SIGTERM SIGINT SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGALRM",
     "signals that end the run [SIGTERM,SIGINT,SIGHUP,SIGQUIT]"},
    {kFailures, "on-stall", '\0', kValue, "log|kill|off", "log kill off",
     "what to do with a worker that is alive but stuck [log]"},
    {kFailures, "stall-timeout", '\0', kValue, "SECONDS", "",
     "never call a worker stuck before so many seconds [180]"},
    {kFailures, "error-file", '\0', kValue, "FILE", "@file",
     "why the run failed, as JSON (docs/verdict.md)"},

    {kProgram, "module", 'm', kSwitch, "", "", "PROGRAM is a Python module"},
    {kProgram, "no-python", '\0', kSwitch, "", "", "execute PROGRAM even if it ends in .py"},
    {kProgram, "run-path", '\0', kSwitch, "", "", "run PROGRAM by Python's runpy.run_path"},
    {kProgram, "use-env", '\0', kSwitch, "", "",
     "accepted; --use-env=0 also passes --local-rank=N first"},
    {kProgram, "role", '\0', kValue, "NAME", "", "name of these workers' role [default]"},
    {kProgram, "virtual-local-rank", '\0', kSwitch, "", "",
     "each worker sees LOCAL_RANK=0 and only its own GPU"},
    {kProgram, "oversubscribe-gpu", '\0', kSwitch, "", "",
     "let several workers share a GPU (tests only)"},
    {kProgram, "numa-binding", '\0', kValue, "MODE", "none node socket exclusive core-complex",
     "node, socket, exclusive or core-complex of the GPU [none]"},
    {kProgram, "omp-num-threads", '\0', kValue, "N|auto", "auto",
     "OMP_NUM_THREADS; auto: the worker's cores"},

    {kOutput, "log-dir", '\0', kValue, "DIR", "@dir",
     "where -r and -t write their files [a new folder]"},
    {kOutput, "redirects", 'r', kValue, "0-3|RANK:N,...", "0 1 2 3",
     "to files only: 1 stdout, 2 stderr, 3 both [0]"},
    {kOutput, "tee", 't', kValue, "0-3|RANK:N,...", "0 1 2 3", "to files and the terminal [0]"},
    {kOutput, "local-ranks-filter", '\0', kValue, "RANK,...", "",
     "show only these local ranks [all]"},
    {kOutput, "log-line-prefix-template", '\0', kValue, "TEXT", "",
     "of ${role_name} ${rank} ${local_rank} ${hostname}"},
    {kOutput, "duplicate-stdout-filters", '\0', kValue, "TEXT,...", "",
     "teed lines with one of these also to one file"},
    {kOutput, "duplicate-stderr-filters", '\0', kValue, "TEXT,...", "", "the same of stderr"},
    {kOutput, "log-rotate", '\0', kValue, "SIZE[:COUNT]", "10M 100M 1G 100M:9",
     "a new log file every SIZE (100M), keep COUNT old ones [off:5]"},
    {kOutput, "log-format", '\0', kValue, "text|json", "text json",
     "json: each line an object, ddprun's own too [text]"},
    {kOutput, "fold-lines", '\0', kSwitch, "", "",
     "show what many ranks say alike once: [0-7] x8: text"},
    {kOutput, "report", '\0', kSwitch, "", "", "end with a table of where each rank's time went"},
    {kOutput, "verbose", 'v', kSwitch, "", "", "log every decision"},
    {kOutput, "quiet", '\0', kSwitch, "", "", "print warnings and errors only"},

    {kOther, "dry-run", '\0', kSwitch, "", "", "show what would run where, and stop"},
    {kOther, "monitor-interval", '\0', kValue, "SECONDS", "", "accepted and unused: nothing polls"},
    {kOther, "start-method", '\0', kValue, "METHOD", "spawn fork forkserver",
     "accepted and unused: workers are programs"},
    {kOther, "event-log-handler", '\0', kValue, "null", "null",
     "accepted: there are no events to handle"},
    {kOther, "logs-specs", '\0', kValue, "default", "default",
     "accepted: see --log-dir, -r and -t"},
    {kOther, "print-completion", '\0', kValue, "bash|zsh|tcsh", "bash zsh tcsh",
     "print a completion script"},
    {kOther, "version", '\0', kPrint, "", "", "print the version"},
    {kOther, "help", 'h', kPrint, "", "", "print the flags used most; --help all: every flag"},

};

}  // namespace

std::span<const Flag> all_flags() { return kFlags; }

const Flag* find_flag(std::string_view dashed_name) {
  const auto found = std::find_if(std::begin(kFlags), std::end(kFlags),
                                  [&](const Flag& flag) { return flag.name == dashed_name; });
  return found == std::end(kFlags) ? nullptr : found;
}

std::vector<std::string> flag_names() {
  std::vector<std::string> names;
  for (const Flag& flag : kFlags) {
    names.push_back("--" + std::string(flag.name));
  }
  return names;
}

std::string underscored(std::string_view dashed_name) {
  std::string text(dashed_name);
  std::replace(text.begin(), text.end(), '-', '_');
  return text;
}

std::string pet_variable(std::string_view dashed_name) {
  std::string text = underscored(dashed_name);
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char letter) { return std::toupper(letter); });
  return "PET_" + text;
}

}  // namespace ddprun::launcher
