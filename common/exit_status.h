#pragma once
// Every exit code that ddprun itself gives. A script that starts ddprun can distinguish "you typed
// it wrong" and "the others never came" from "the training failed". `ddprun --help` and ddprun(1)
// are made from the table; docs/environment.md explains its rows, and a test compares.

#include <csignal>

namespace ddprun {

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailed = 1;      // ddprun itself failed: no memory, no permission, a bug.
inline constexpr int kExitUsage = 2;       // The command line or an input file cannot be meant so.
inline constexpr int kExitRendezvous = 3;  // The nodes did not come together, or not in time.
inline constexpr int kExitNeverReady = 4;  // The run goes on, and this node's workers cannot join.
// The node left because its time was over (--preempt-signal): run it again to continue. EX_TEMPFAIL
// of sysexits.h.
inline constexpr int kExitPreempted = 75;
// As a shell has it, of a program that it cannot run.
inline constexpr int kExitCannotStart = 127;

struct ExitMeaning {
  int code;
  const char* meaning;  // For people.
};

// What ddprun ends with. Any other code is the first failing worker's own.
inline constexpr ExitMeaning kExitMeanings[] = {
    {kExitOk, "all workers exited with 0"},
    {kExitFailed, "ddprun itself failed"},
    {kExitUsage, "usage"},
    {kExitRendezvous, "the nodes did not meet in time"},
    {kExitNeverReady, "this node has left, as none of its workers became ready"},
    {kExitPreempted, "this node has left because of --preempt-signal"},
    {kExitCannotStart, "a worker could not be started"},
};
inline constexpr const char* kExitElse =
    "otherwise that of the first worker that failed, 128+n if signal n killed it";

// The shell's code for a program that a signal ended.
constexpr int exit_code_of_signal(int signal) { return 128 + signal; }

// The signal with which the launching ddprun of --host-discovery withdraws a node if its host is no
// longer listed. It announces the end like those of --preempt-signal. Sent within one machine only,
// to a node's launcher by the process that reads what comes from the launching one. A launcher
// sends it to its daemon if its node has left a run that continues elsewhere.
inline constexpr int kLeaveSignal = SIGPWR;

}  // namespace ddprun
