#include "agent/process/family.h"

#include <catch2/catch.hpp>

namespace ddprun::agent {
namespace {

using Pids = std::vector<int>;

// pid, parent, group, session, started.
const FamilyMember kAgent{50, 1, 50, 50, 900};
const FamilyMember kWorker{100, 50, 100, 100, 1000};

Pids pids(const std::vector<FamilyHead>& heads, const std::vector<FamilyMember>& all,
          bool hidden = false) {
  Pids found;
  for (const auto& member : families_of(heads, all, [&](int) { return hidden; })) {
    found.push_back(member.pid);
  }
  return found;
}

TEST_CASE("Family: a worker, its group, its session, and what descends from those", "[keeper]") {
  const std::vector<FamilyMember> all = {
      kAgent,
      kWorker,
      {101, 100, 101, 100, 1001},  // A job of its shell.
      {102, 1, 100, 100, 1001},    // Its parent is gone.
      {103, 101, 103, 103, 1002},  // A session of its own.
      {104, 103, 104, 104, 1003},
      {200, 1, 200, 200, 1004},  // A stranger.
      {201, 200, 200, 200, 1004},
  };
  CHECK(pids({{100, {999, 1001}}}, all) == Pids{100, 101, 102, 103, 104});
  CHECK(pids({{100}}, all) == Pids{100, 101, 102, 103, 104});
  CHECK(pids({}, all).empty());
}

TEST_CASE("Family: a number that is a stranger's by now brings in nobody", "[keeper]") {
  for (const TickSpan start : {TickSpan{998, 999}, TickSpan{1001, 1002}}) {
    CHECK(pids({{100, start}}, {kAgent, kWorker, {101, 100, 100, 100, 1001}}).empty());
  }
  const FamilyMember leads_no_session{100, 50, 100, 50, 1000};
  CHECK(pids({{100}}, {kAgent, leads_no_session}).empty());
}

TEST_CASE("Family: what a dead worker has left in its session", "[keeper]") {
  const FamilyMember left{101, 1, 100, 100, 1001};
  CHECK(pids({{100, {999, 1001}}}, {left}) == Pids{101});
  const FamilyMember unreaped{100, 50, 100, 100, 1000, true};
  CHECK(pids({{100, {999, 1001}}}, {unreaped, left}) == Pids{101});
  // The number was free for a while: only what could not be found by its mark.
  CHECK(pids({{100, {999, 1001}, true}}, {left}, /*hidden=*/true) == Pids{101});
  CHECK(pids({{100, {999, 1001}, true}}, {left}, /*hidden=*/false).empty());
}

using namespace std::string_literals;

TEST_CASE("Family: a worker that handles a signal keeps the processes that compute for it",
          "[keeper]") {
  const std::string script = "python3\0train.py\0"s;
  const std::string spawned = "python3\0-c\0from multiprocessing.spawn import spawn_main\0"s;
  std::vector<GroupMember> group = {
      {100, 50, script, true},       // The worker.
      {101, 100, script},            // A DataLoader's process, forked.
      {102, 100, spawned},           // One that was spawned.
      {103, 100, "tensorboard\0"s},  // A program.
      {104, 50, script},             // A fork of a process that has ended.
  };
  CHECK(signal_receivers(100, group) == Pids{100, 103, 104});
  group[0].handles = false;  // It ends at once, and so do they.
  CHECK(signal_receivers(100, group) == Pids{100, 101, 102, 103, 104});
}

TEST_CASE("Family: the program of a shell script gets the signal, its forks do not", "[keeper]") {
  const std::string script = "python3\0train.py\0"s;
  const std::vector<GroupMember> group = {
      {100, 50, "bash\0run.sh\0"s, true}, {101, 100, script, true}, {102, 101, script}};
  CHECK(signal_receivers(100, group) == Pids{100, 101});
  const std::vector<GroupMember> subshell = {
      {100, 50, "sh\0run.sh\0"s, true}, {101, 100, "sh\0run.sh\0"s, true}, {102, 101, script}};
  CHECK(signal_receivers(100, subshell) == Pids{100, 102});
}

}  // namespace
}  // namespace ddprun::agent
