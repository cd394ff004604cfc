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
    {kNodes, "standalone", '\0', kSwitch, "", "", "a run of one node, without configuration"},
    {kNodes, "nnodes", '\0', kValue, "N|MIN:MAX", "", "number of nodes [1]"},
    {kNodes, "nproc-per-node", '\0', kValue, "N|auto|gpu|cpu", "auto gpu cpu",
     "workers on each node [1]"},
    {kNodes, "local-nodes", '\0', kValue, "N", "", "simulate N nodes on this machine [off]"},
    {kNodes, "hosts", '\0', kValue, "HOST[:N],...", "@hosts",
     "start a node on each host by ssh, with N workers"},
    {kNodes, "host-discovery", '\0', kValue, "SCRIPT", "@file",
     "the same on the hosts that SCRIPT lists, run repeatedly"},
    {kNodes, "host-discovery-period", '\0', kValue, "SECONDS", "",
     "time from the end of SCRIPT to its next run [5]"},
    {kNodes, "ssh", '\0', kValue, "COMMAND", "",
     "ssh command for --hosts: 'ssh -i KEY -p 2222' [ssh]"},
    {kNodes, "env", '\0', kValue, "NAME,...", "", "further variables that --hosts transfers"},
    {kNodes, "node-rank", '\0', kValue, "N", "", "group rank of this node [order of arrival]"},

    {kMeeting, "rdzv-endpoint", '\0', kValue, "HOST[:PORT][,..]", "",
     "address of the daemon; [V6]:PORT too [port 29400]"},
    {kMeeting, "rdzv-id", '\0', kValue, "ID", "",
     "name of the run, equal on all nodes [none; alone: a new one]"},
    {kMeeting, "rdzv-backend", '\0', kValue, "c10d|static", "c10d static",
     "static: node rank 0 hosts at --master-addr [c10d]"},
    {kMeeting, "rdzv-conf", '\0', kValue, "K=V,...", "",
     "join_timeout=600, auth=none, ... (docs/environment.md)"},
    {kMeeting, "token-file", '\0', kValue, "FILE", "@file",
     "file with the run's token [$DDPRUN_TOKEN]"},
    {kMeeting, "local-addr", '\0', kValue, "ADDR", "", "address of this node for the other nodes"},
    {kMeeting, "master-addr", '\0', kValue, "ADDR", "", "host of node rank 0, as with torchrun"},
    {kMeeting, "master-port", '\0', kValue, "PORT", "", "port of node rank 0, as with torchrun"},

    {kFailures, "max-restarts", '\0', kValue, "N", "",
     "restarts of all workers before giving up [0]"},
    {kFailures, "spares", '\0', kValue, "N", "",
     "extra workers per node, ready to replace one that ends [0]"},
    {kFailures, "min-ranks", '\0', kValue, "N", "",
     "with fewer ranks the run waits for others [1]"},
    {kFailures, "shutdown-timeout", '\0', kValue, "SECONDS", "",
     "time from SIGTERM to SIGKILL for workers [30]"},
    {kFailures, "signals-to-handle", '\0', kValue, "SIG,...",
     ",SIGTERM SIGINT SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGALRM",
     "signals that end the run [SIGTERM,SIGINT,SIGHUP,SIGQUIT]"},
    {kFailures, "preempt-signal", '\0', kValue, "SIG,...",
     ",SIGTERM SIGINT SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGALRM",
     "signals that announce this node's end; it exits with 75"},
    {kFailures, "on-stall", '\0', kValue, "log|kill|off", "log kill off",
     "action for a worker that is alive but stuck [log]"},
    {kFailures, "stall-timeout", '\0', kValue, "SECONDS", "",
     "shortest time after which a worker is stuck [180]"},
    {kFailures, "preflight", '\0', kValue, "off|fast|full", "off fast full",
     "check each node while workers start, or before it joins [off]"},
    {kFailures, "chaos", '\0', kValue, "SECONDS", "",
     "kill a random worker this often on average, as a trial [off]"},
    {kFailures, "error-file", '\0', kValue, "FILE", "@file",
     "write the verdict of a failed run as JSON to FILE"},

    {kProgram, "module", 'm', kSwitch, "", "", "PROGRAM is a Python module"},
    {kProgram, "no-python", '\0', kSwitch, "", "", "execute PROGRAM even if it ends in .py"},
    {kProgram, "run-path", '\0', kSwitch, "", "", "run PROGRAM with Python's runpy.run_path"},
    {kProgram, "use-env", '\0', kSwitch, "", "",
     "accepted; --use-env=0 also passes --local-rank=N first"},
    {kProgram, "role", '\0', kValue, "NAME", "", "role of these workers [default]"},
    {kProgram, "virtual-local-rank", '\0', kSwitch, "", "",
     "each worker sees LOCAL_RANK=0 and only its own GPU"},
    {kProgram, "oversubscribe-gpu", '\0', kSwitch, "", "",
     "let several workers share a GPU (tests only)"},
    {kProgram, "preload", '\0', kValue, "auto|off|MODULE,...", "auto off",
     "fork Python workers from a process that has imported [off]"},
    {kProgram, "numa-binding", '\0', kValue, "MODE", "none node socket exclusive core-complex",
     "node, socket, exclusive or core-complex of the GPU [none]"},
    {kProgram, "omp-num-threads", '\0', kValue, "N|auto", "auto",
     "OMP_NUM_THREADS; auto: the worker's cores"},

    {kOutput, "log-dir", '\0', kValue, "DIR", "@dir",
     "folder for the files of -r and -t [a new folder]"},
    {kOutput, "redirects", 'r', kValue, "0-3|RANK:N,...", "0 1 2 3",
     "write to files only: 1 stdout, 2 stderr, 3 both [0]"},
    {kOutput, "tee", 't', kValue, "0-3|RANK:N,...", "0 1 2 3",
     "write to files and the terminal [0]"},
    {kOutput, "local-ranks-filter", '\0', kValue, "RANK,...", "",
     "print only these local ranks [all]"},
    {kOutput, "log-line-prefix-template", '\0', kValue, "TEXT", "",
     "from ${role_name} ${rank} ${local_rank} ${hostname}"},
    {kOutput, "duplicate-stdout-filters", '\0', kValue, "TEXT,...", "",
     "also write teed lines that contain a TEXT to one file"},
    {kOutput, "duplicate-stderr-filters", '\0', kValue, "TEXT,...", "", "the same for stderr"},
    {kOutput, "log-rotate", '\0', kValue, "SIZE[:COUNT]", "10M 100M 1G 100M:9",
     "a new log file every SIZE (100M), keep COUNT old ones [off:5]"},
    {kOutput, "log-format", '\0', kValue, "text|json", "text json",
     "json: one object per line, also for ddprun's lines [text]"},
    {kOutput, "fold-lines", '\0', kSwitch, "", "",
     "print equal lines of several ranks once: [0-7] x8: text"},
    {kOutput, "report", '\0', kSwitch, "", "", "print a table of each rank's time at the end"},
    {kOutput, "report-html", '\0', kValue, "FILE", "@file",
     "write a page that shows where all ranks' time went"},
    {kOutput, "verbose", 'v', kSwitch, "", "", "log every decision"},
    {kOutput, "quiet", '\0', kSwitch, "", "", "print warnings and errors only"},

    {kOther, "dry-run", '\0', kSwitch, "", "", "print what would run where, and exit"},
    {kOther, "monitor-interval", '\0', kValue, "SECONDS", "", "accepted and unused: nothing polls"},
    {kOther, "start-method", '\0', kValue, "METHOD", "spawn fork forkserver",
     "accepted and unused: workers are programs"},
    {kOther, "event-log-handler", '\0', kValue, "HANDLER", "null console dynamic_rendezvous",
     "console: log every decision; others: accepted, unused"},
    {kOther, "logs-specs", '\0', kValue, "default", "default",
     "accepted: see --log-dir, -r and -t"},
    {kOther, "print-completion", '\0', kValue, "bash|zsh|tcsh", "bash zsh tcsh",
     "print a completion script"},
    {kOther, "version", '\0', kPrint, "", "", "print the version"},
    {kOther, "help", 'h', kPrint, "", "", "print the most used flags; --help all: all flags"},

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
