#pragma once
// What ddprunctl --help says below its verbs and flags. Pure.

namespace ddprun::launcher {

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
  ddprunctl ras                               what NCCL reports of the jobs on this machine
  ddprunctl cancel job7 --reason "wrong data" ends the run; each ddprun of it exits with 143
  source <(ddprunctl --print-completion bash) completes verbs and flags; zsh and tcsh too

history, logs, stacks, debug, report of a past run and, without an endpoint, top need no daemon:
they show the runs of this user on this machine.

The endpoint is --rdzv-endpoint, else PET_RDZV_ENDPOINT, else DDPRUN_ENDPOINT, else 127.0.0.1:29400.
The daemon's token is the first line of --token-file, else DDPRUN_TOKEN, else the first line of the
file that DDPRUN_TOKEN_FILE names. Exit codes: 0: done; 1: the daemon refused or was unreachable;
2: usage.)";

}  // namespace ddprun::launcher
