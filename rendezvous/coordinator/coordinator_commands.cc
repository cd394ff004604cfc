// The part of Coordinator that answers operators. Their links say one Command, get their answer and
// are hung up on; they are no agents.

#include <algorithm>
#include <csignal>
#include <utility>

#include "common/text/figures.h"
#include "common/text/screen.h"
#include "rendezvous/coordinator/coordinator.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t kNamedMax = 20;  // In a list for people.

std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (i == kNamedMax) return text + ", and " + std::to_string(names.size() - i) + " more";
    text += (i == 0 ? "" : ", ") + names[i];
  }
  return text;
}

// "10 min", "90 s".
std::string limit_text(Milliseconds limit) {
  const auto minutes = std::chrono::duration_cast<std::chrono::minutes>(limit);
  if (minutes.count() == 0 || minutes != limit) return seconds_text(limit);
  return std::to_string(minutes.count()) + " min";
}

Failure refused(std::string why) { return {Errc::kNotFound, std::move(why)}; }

}  // namespace

DaemonStatus Coordinator::status(TimePoint now) const {
  DaemonStatus status;
  for (const auto& [run_id, run] : runs_) {
    status.runs.push_back(run.status(now));
    status.runs.back().run_id = run_id;
    add_ledger(status.runs.back(), now);
  }
  return status;
}

void Coordinator::answer(LinkId link, const Command& command) {
  ++counters_.commands;
  const Result<std::string> done = obey(command);
  if (!done) {
    actions_.push_back(Send{link, encode(Answer{.error = done.error().context})});
  } else {
    std::size_t at = 0;
    do {
      const std::string piece = done->substr(at, kTextPieceBytes);
      at += piece.size();
      actions_.push_back(Send{link, encode(Answer{.text = piece, .more = at < done->size()})});
    } while (at < done->size());
  }
  actions_.push_back(Hangup{link, ""});
}

Result<std::string> Coordinator::obey(const Command& command) {
  if (command.version != kProtocolVersion) {
    counters_.refused.add(Refusal::kOtherVersion);
    return refused("this daemon speaks protocol version " + std::to_string(kProtocolVersion) +
                   ", ddprunctl version " + std::to_string(command.version) +
                   "; install the same ddprun on both sides");
  }
  if (command.verb == Command::Verb::kHistory) return history(command);
  if (command.verb == Command::Verb::kReport && has_ended(command.run_id)) {
    if (auto account = past_.account(command.run_id)) return *std::move(account);
  }
  if (!command.run_id.empty() && !runs_.contains(command.run_id)) {
    std::vector<std::string> known;
    for (const auto& [run_id, run] : runs_) known.push_back(run_id);
    return refused("there is no run '" + command.run_id + "' here; " +
                   (known.empty() ? "there is none at all" : "there are: " + listed(known)));
  }
  switch (command.verb) {
    case Command::Verb::kStatus:
    case Command::Verb::kWatch: {
      DaemonStatus all = command.verb == Command::Verb::kWatch ? watched(now_) : status(now_);
      if (!command.run_id.empty()) {
        std::erase_if(all.runs, [&](const auto& run) { return run.run_id != command.run_id; });
      }
      return encode(all);
    }
    case Command::Verb::kDrain: return drain(command);
    case Command::Verb::kCancel: return cancel(command);
    case Command::Verb::kResize: return resize(command);
    case Command::Verb::kHistory: break;  // Asked before: its runs are not among runs_.
    case Command::Verb::kReport: {
      auto account = this->account(command.run_id, now_);
      if (!account) return refused("name the run to report on");
      return *std::move(account);
    }
  }
  return refused("unknown command");
}

// A node that one means by its id or by its host, as "host (id) of run".
Result<std::string> Coordinator::drain(const Command& command) {
  struct Found {
    std::string run_id;
    NodeId node;
  };
  std::vector<Found> found;
  std::vector<std::string> names, all;
  for (const RunStatus& run : status(now_).runs) {
    if (!command.run_id.empty() && run.run_id != command.run_id) continue;
    if (run.state == "closing" || run.state == "ended") continue;
    for (const NodeStatus& node : run.nodes) {
      const std::string name = node.host + " (" + node.id + ") of run '" + run.run_id + "'";
      all.push_back(name);
      if (node.id != command.node && node.host != command.node) continue;
      found.push_back({run.run_id, node.id});
      names.push_back(name);
    }
  }
  if (found.empty()) {
    return refused("there is no node '" + command.node + "' in a run that has not ended; " +
                   (all.empty() ? "there is none at all" : "there are: " + listed(all)));
  }
  if (found.size() > 1) {
    return refused("'" + command.node + "' may be " + listed(names) +
                   "; name one by its id, or the run too");
  }
  const Run& run = runs_.at(found[0].run_id);
  if (run.is_last_holder(found[0].node) && !command.force) {
    return refused(names[0] +
                   " has the only workers that have the state of this job; without them it begins "
                   "again, with its checkpoint if it has one. To drain the node all the same, add "
                   "--force");
  }
  const bool waits = run.waits_without(found[0].node);
  const std::string limit = limit_text(run.join_timeout());
  step(found[0].run_id, {found[0].node, Drain{plain_line(command.reason)}});
  return names[0] + " is drained: the run " +
         (waits ? "waits " + limit + " for another node" : "continues without it");
}

Result<std::string> Coordinator::resize(const Command& command) {
  const auto run = runs_.find(command.run_id);
  if (run == runs_.end()) return refused("name the run to resize");
  const std::string name = "run '" + command.run_id + "'";
  const Run::State state = run->second.state();
  if (state == Run::State::kClosing || state == Run::State::kEnded) {
    return refused(name + " is over already");
  }
  const RunStatus status = run->second.status(now_);
  if (status.nnodes_max == 0) return refused("no node has joined " + name + " yet");
  if (command.nodes < status.nnodes_min || command.nodes > status.nnodes_max) {
    return refused(name + " was started for " + std::to_string(status.nnodes_min) + " to " +
                   std::to_string(status.nnodes_max) + " nodes (--nnodes)");
  }
  step(command.run_id, {"", Resize{command.nodes, plain_line(command.reason)}});
  return name + " is resized to " + number_of(command.nodes, "node");
}

Result<std::string> Coordinator::cancel(const Command& command) {
  const auto run = runs_.find(command.run_id);
  if (run == runs_.end()) return refused("name the run to cancel");
  const Run::State state = run->second.state();
  if (state == Run::State::kClosing || state == Run::State::kEnded) {
    // It might still open again, were its failure excused; nobody wants that any more.
    if (state == Run::State::kClosing)
      step(command.run_id, {"", Cancel{SIGTERM, plain_line(command.reason)}});
    return refused("run '" + command.run_id + "' is over already: " + run->second.verdict()->text);
  }
  step(command.run_id, {"", Cancel{SIGTERM, plain_line(command.reason)}});
  return "run '" + command.run_id + "' is cancelled; its workers are being stopped";
}

}  // namespace ddprun::rendezvous
