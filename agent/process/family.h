#pragma once
// Which processes belong to a worker: itself, its process group, its session, and all that descends
// from those. Decided by what every user may read in /proc, so that it holds for setuid programs
// too, although only root may read their environment. Pure; used by keeper.cc.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace ddprun::agent {

// From when until when something happened, as ProcStat::started.
struct TickSpan {
  std::uint64_t from = 0;
  std::uint64_t until = 0;  // 0: it is not known.
};

// A worker; it leads its session, which a leader cannot leave.
struct FamilyHead {
  int pid = 0;
  TickSpan started = {};
  bool reaped = false;  // Only what it has left behind is meant.
};

struct FamilyMember {
  int pid = 0;
  int parent = 0;
  int group = 0;
  int session = 0;
  std::uint64_t started = 0;
  bool dead = false;  // Not reaped yet.
};

// The processes of `all` that belong to one of `heads` and live. A process id that a stranger has
// by now adds none. If the head was reaped, its id may have been a stranger's meanwhile: then only
// processes with an unreadable environment, by `is_hidden`, count; the others are known by the mark
// in their environment.
std::vector<FamilyMember> families_of(const std::vector<FamilyHead>& heads,
                                      const std::vector<FamilyMember>& all,
                                      const std::function<bool(int pid)>& is_hidden);

// A process of a worker's group, as far as it decides which signals it gets.
struct GroupMember {
  int pid = 0;
  int parent = 0;
  std::string command = {};  // /proc/<pid>/cmdline: arguments, each ended by a NUL.
  bool handles = false;      // It catches, ignores or blocks the signal.
};

// The processes of `group` that get a signal for the worker `leader` to end or to save: the worker,
// and the programs that it has started, such as the one that a shell script runs. A program that
// handles the signal may still need the processes that compute for it, its forks for a DataLoader
// and those of Python's multiprocessing, and ends them itself: they get none.
std::vector<int> signal_receivers(int leader, const std::vector<GroupMember>& group);

}  // namespace ddprun::agent
