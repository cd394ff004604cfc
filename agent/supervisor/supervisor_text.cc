// What a Supervisor does and is, as text for traces and failed tests.

#include <cstring>

#include "agent/supervisor/supervisor.h"

namespace ddprun::agent {
namespace {

const char* is(const rendezvous::Hello&) { return "hello"; }
const char* is(const rendezvous::Join&) { return "join"; }
const char* is(const rendezvous::Heartbeat&) { return "heartbeat"; }
const char* is(const rendezvous::Finished&) { return "finished"; }
const char* is(const rendezvous::Failed&) { return "failed"; }
const char* is(const rendezvous::Stopped&) { return "stopped"; }
const char* is(const rendezvous::Leave&) { return "leave"; }
const char* is(const rendezvous::Away&) { return "away"; }
const char* is(const rendezvous::Slots&) { return "slots"; }

std::string line(const SendJoin& join) {
  return "send join" + (join.living ? " with " + std::to_string(join.workers) + " living" : "");
}
std::string line(const SendMessage& send) {
  return std::string("send ") + std::visit([](const auto& m) { return is(m); }, send.message);
}
std::string line(const StartWorkers& start) {
  return "start round=" + std::to_string(start.seat.round) +
         " restarts=" + std::to_string(start.seat.restart_count);
}
std::string line(const SpawnWorker& spawn) {
  return "spawn local rank " + std::to_string(spawn.local_rank);
}
std::string line(const SeatWorkers& seat) {
  std::string text = "seat round=" + std::to_string(seat.seat.round) + " local ranks";
  for (const int local_rank : seat.local_ranks) text += " " + std::to_string(local_rank);
  return text;
}
std::string line(const FenceWorkers& fence) { return "fence round=" + std::to_string(fence.round); }
std::string line(const AnnounceChange& change) {
  return "announce change of round=" + std::to_string(change.round);
}
std::string line(const KillWorkers& kill) {
  std::string text = "kill local ranks";
  for (const int local_rank : kill.local_ranks) text += " " + std::to_string(local_rank);
  return text;
}
std::string line(const SignalWorkers& signal) {
  const std::string lost =
      signal.lost_rank < 0 ? "" : ", rank " + std::to_string(signal.lost_rank) + " is lost";
  using Whom = SignalWorkers::Whom;
  const char* whom = signal.whom == Whom::kAll             ? ""
                     : signal.whom == Whom::kAllButLeavers ? ", but not those that leave"
                                                           : " to those that leave";
  return std::string("signal SIG") + ::sigabbrev_np(signal.signal) + lost + whom;
}
std::string line(const CleanUp&) { return "clean up"; }
std::string line(const AbandonWorkers&) { return "abandon"; }
std::string line(const Say& say) { return "say " + say.text; }
std::string line(const Exit& exit) { return "exit " + std::to_string(exit.status); }

}  // namespace

std::string to_string(const Action& action) {
  return std::visit([](const auto& a) { return line(a); }, action);
}

std::string Supervisor::describe() const {
  static constexpr const char* kNames[] = {"joining",  "running", "leaving", "finished",
                                           "stopping", "stopped", "done"};
  return std::string(kNames[static_cast<int>(state_)]) + " round=" + std::to_string(round()) +
         " living=" + std::to_string(living_) + (linked_ ? "" : " no link");
}

}  // namespace ddprun::agent
