#pragma once
// The options of ddprunctl: their tables, and what they become. Called by ctl_main.cc first of all.

#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "common/options/option.h"
#include "launcher/options/options.h"
#include "launcher/whatif/comparison.h"

namespace ddprun::launcher {

struct CtlOptions {
  enum class Verb {
    kStatus,   // All runs, or one with its nodes.
    kNodes,    // All nodes, or those of one run.
    kDrain,    // The run continues without a node.
    kCancel,   // A run ends.
    kReport,   // How a run's time was spent.
    kResize,   // A run gets another number of nodes.
    kRas,      // NCCL's report about jobs with workers on this machine.
    kTop,      // Runs in progress, shown repeatedly.
    kLogs,     // The last output of workers on this machine.
    kStacks,   // The stacks of a worker on this machine.
    kDebug,    // PyTorch's debug handlers of a worker on this machine.
    kHistory,  // The last runs of this user on this machine, or of the daemon.
    kHealth,   // Whether the agents of the runs on this machine answer.
    kCapture,  // A rank on this machine writes a bundle of its next step.
    kPreload,  // What runs of this user have kept in memory on this machine.
    kWhatIf,   // What a run would have been with spares, other nodes, other checkpoints.
  };
  Verb verb = Verb::kStatus;
  std::string run_id;           // Empty: all.
  std::optional<Endpoint> ras;  // kRas: the address; absent: to be found.
  Milliseconds ras_limit{20'000};
  std::string node;    // kDrain: its id or its host.
  int nodes = 0;       // kResize.
  bool force = false;  // kDrain: although the state of a job goes with the node.
  std::string reason;
  bool json = false;
  std::optional<int> rank;  // kLogs, kStacks, kDebug.
  std::string handler;      // kDebug; empty: which there are.
  Milliseconds debug_limit{60'000};
  bool follow = false;           // kLogs: continue until the run ends.
  bool once = false;             // kTop.
  Milliseconds interval{2'000};  // kTop.
  bool queries_daemon = true;    // Else this machine's records of this user's runs.
  // kReport, kWhatIf: a run of this machine's history, then the daemon.
  bool own_first = false;
  std::string html_file;     // kReport: the page; empty: prints the account.
  std::string end;           // kPreload: a process, or "all"; empty: lists them.
  std::string account_file;  // kWhatIf: the account; empty: that of the run.
  WhatIf what_if{};          // kWhatIf.
  Endpoint endpoint;
  std::optional<std::string> token_file;  // Absent: DDPRUN_TOKEN has the token.
  bool authenticated = true;
};

std::span<const Option> ctl_options();    // Those of the program.
std::vector<CommandSpec> ctl_commands();  // Its verbs, with theirs.

using CtlOutcome = std::variant<CtlOptions, PrintAndExit>;

// A failure is Errc::kBadOption and its context one sentence to show the user; exit code 2.
Result<CtlOutcome> parse_ctl(int argc, const char* const* argv, const Environment& environment);

// The end of ddprunctl --help, below its verbs and flags. Pure.
inline constexpr const char* kCtlHelp = R"(Examples
  ddprunctl status                            the runs of the daemon on this machine
  ddprunctl -e head:29400 status --run job7   one run, with its nodes and its verdict
  ddprunctl nodes --json | jq .               all nodes of all runs, for programs
  ddprunctl drain node12 --reason "bad fan"   the run continues without node12
  ddprunctl resize job7 3                     the run continues with 3 nodes
  ddprunctl report job7 --html job7.html      where its time went, as a page
  ddprunctl top                               the runs of this machine, live; q ends it
  ddprunctl top -e head:29400 --once --json   the same of a daemon's runs, for programs
  ddprunctl history                           the last runs here, with what ended them
  ddprunctl history -e head:29400             the last runs that a daemon has recorded
  ddprunctl logs job7 3 --follow              what rank 3 writes
  ddprunctl stacks job7 3                     where rank 3 is, if it is stuck
  ddprunctl debug job7 3 fr_trace_json        PyTorch's flight recorder of rank 3
  ddprunctl capture job7                      the next step of job7, for ddprun replay
  ddprunctl whatif job7 --spare-nodes 0,1,2   what one and two spares would have saved
  ddprunctl preload --end all                 frees what runs have kept in memory here
  ddprunctl ras                               what NCCL reports of the jobs on this machine
  ddprunctl health                            0 if the agents here answer: for probes of pods
  ddprunctl cancel job7 --reason "wrong data" ends the run; each ddprun of it exits with 143
  source <(ddprunctl --print-completion bash) completes verbs and flags; zsh and tcsh too

history, logs, stacks, debug, health, preload, report and whatif of a past run and, without an
endpoint, top need no daemon and no token: they show the runs of this user on this machine.

The endpoint is --rdzv-endpoint, else PET_RDZV_ENDPOINT, else DDPRUN_ENDPOINT, else 127.0.0.1:29400.
The daemon's token is the first line of --token-file, else DDPRUN_TOKEN, else the first line of the
file that DDPRUN_TOKEN_FILE names. Exit codes: 0: done; 1: the daemon refused or was unreachable,
or with health an agent does not answer, or there is none; 2: usage.)";

}  // namespace ddprun::launcher
