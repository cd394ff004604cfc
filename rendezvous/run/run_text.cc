// What a Run says: to people who wait, in traces and in failed tests.

#include "common/text/figures.h"
#include "rendezvous/run/run.h"

namespace ddprun::rendezvous {

namespace {

constexpr int kNamesMax = 8;  // More nodes are counted, not named.

// Adds `name` to a list of names; false once it is long enough.
bool add_name(std::string& list, int& named, const std::string& name) {
  if (++named > kNamesMax) return list += ", ...", false;
  list += (named == 1 ? "" : ", ") + name;
  return true;
}

}  // namespace

std::string Run::losses_text() const {
  constexpr std::size_t kToldMax = 10;
  std::string text;
  for (std::size_t i = 0; i < std::min(lost_.size(), kToldMax); ++i) {
    const auto& [what, times] = lost_[i];
    text += " " + what + (times > 1 ? ", " + std::to_string(times) + " times" : "") + ".";
  }
  if (lost_.size() <= kToldMax) return text;
  return text + " And so on: " + std::to_string(lost_.size()) + " of these in all.";
}

// The hosts of the nodes that wait.
std::string Run::roster_text() const {
  std::string text;
  int named = 0;
  for (const NodeId& node : ready_) {
    if (!add_name(text, named, members_.at(node).offer.host)) break;
  }
  return text;
}

std::string Run::names_text(Phase phase) const {
  std::string text;
  int named = 0;
  for (const auto& [node, member] : members_) {
    if (member.phase != phase) continue;
    if (!add_name(text, named, member.offer.host)) break;
  }
  return text;
}

// What a node that has no seat waits for.
std::string Run::waiting_text(const Member* member) const {
  if (state_ == State::kRunning) {
    if (seated() >= size()) return "held in reserve: the run has enough nodes";
    if (config_->join_at_restart)
      return "held in reserve: new nodes are let in when the round ends";
    if (member && (member->invited || member->living)) {
      const bool ready = member->living && member->phase == Phase::kReady && member->beginning == 0;
      return ready ? "its workers are ready: they get seats at the next boundary between steps"
                   : "its workers are starting: they get seats when they are ready";
    }
    return "waiting for more nodes before the round is stopped for them";
  }
  const int min = config_->nnodes_min, max = config_->nnodes_max, ready = count(Phase::kReady);
  const std::string wanted =
      min == max ? std::to_string(max) : std::to_string(min) + " to " + std::to_string(max);
  const bool lacks_ranks =
      ready >= min && ready_ranks() < min_ranks_ && count(Phase::kStopping) == 0;
  std::string text =
      state_ == State::kLastCall ? "last call for more nodes: " : "waiting for nodes: ";
  text += std::to_string(ready) + " of " + wanted + " here";
  if (lacks_ranks) {
    text = "waiting for ranks: " + std::to_string(ready_ranks()) + " of at least " +
           std::to_string(min_ranks_) + " here";
  }
  if (ready > 0) text += " (" + roster_text() + ")";
  if (count(Phase::kStopping) > 0) {
    text += "; " + names_text(Phase::kStopping) + (keep_ ? " still to leave" : " still to stop");
  }
  if (count(Phase::kEmpty) > 0) text += "; " + names_text(Phase::kEmpty) + " has no worker yet";
  if (!lost_.empty() && round_ == 0) text += "; " + lost_.back().what;
  if (!neighbour_.empty() && lacks_nodes()) text += "; " + neighbour_;
  return text;
}

bool Run::lacks_nodes() const {
  return state_ == State::kGathering && config_ && round_ == 0 && count(Phase::kReady) > 0;
}

bool Run::could_be(const Run& other) const {
  return config_->nnodes_min == other.config_->nnodes_min &&
         config_->nnodes_max == other.config_->nnodes_max &&
         count(Phase::kReady) + other.count(Phase::kReady) <= config_->nnodes_max;
}

std::string Run::neighbour_text() const {
  return "waits at the same daemon for " +
         std::to_string(config_->nnodes_min - count(Phase::kReady)) + " of " +
         number_of(config_->nnodes_min, "node") + ": is --rdzv-id equal everywhere?";
}

void Run::set_neighbour(std::string text) {
  if (text == neighbour_) return;
  neighbour_ = std::move(text);
  ++roster_;
}

std::string Run::waiting_for(TimePoint now) const {
  const auto yet = [&](TimePoint end) {
    constexpr Milliseconds kTenthsBelow{10'000};
    const auto left = std::chrono::duration_cast<Milliseconds>(std::max(end, now) - now);
    return seconds_text(left < kTenthsBelow ? left : std::chrono::ceil<std::chrono::seconds>(left));
  };
  switch (state_) {
    case State::kGathering:
      if (!config_) return "no node has joined yet";
      return waiting_text() + "; it is given up in " + yet(gather_ends_);
    case State::kLastCall: return waiting_text() + "; it starts in " + yet(wait_ends());
    case State::kRunning:
      return "round " + std::to_string(round_) + " runs on " + number_of(seated(), "node") +
             (ready_.empty() ? "" : ", " + number_of(count(Phase::kReady), "spare")) +
             (size_ > 0 ? ", resized to " + std::to_string(size_) : "");
    case State::kClosing:
      return "waiting for " + names_text(Phase::kStopping) + " to stop; lost in " + yet(stop_ends_);
    case State::kEnded:
      return "it has ended: " + verdict_->text.substr(0, verdict_->text.find('\n'));
  }
  return {};
}

namespace {

std::string line(const Waiting& w) {
  return "waiting " + (w.left > Milliseconds(0) ? seconds_text(w.left) + " " : "") + "(" + w.text +
         ")";
}
std::string line(const Assign& a) {
  const Seat& s = a.seat;
  return "assign round=" + std::to_string(s.round) + " group_rank=" + std::to_string(s.group_rank) +
         "/" + std::to_string(s.group_world_size) + " ranks=" + std::to_string(s.base_rank) +
         ".. of " + std::to_string(s.world_size) + " restarts=" + std::to_string(s.restart_count) +
         " master=" + s.master_address + ":" + std::to_string(s.master_port) +
         (s.lost_steps > 0 ? ", " + std::to_string(s.lost_steps) + " steps are lost" : "");
}
std::string line(const StopRound& s) {
  const char* how = s.final     ? " for good ("
                    : s.planned ? ", at a step ("
                    : s.keep    ? ", kept ("
                                : " (";
  return std::string("stop round=") + std::to_string(s.round) + how + s.reason +
         (s.lost_rank < 0 ? "" : ", rank " + std::to_string(s.lost_rank)) + ")" +
         (s.waits ? ", waiting for others" : "") + (s.awaits_cause ? ", awaiting the cause" : "") +
         (s.lost_steps > 0 ? ", " + std::to_string(s.lost_steps) + " steps are lost" : "");
}
std::string line(const EndRun& e) {
  return "end code=" + std::to_string(e.verdict.exit_code) + " (" + e.verdict.text + ")";
}
std::string line(const Refuse& r) { return "refuse (" + r.reason + ")"; }
std::string line(const Dismiss& d) {
  return std::string("dismiss") + (d.waits ? ", and wait (" : " (") + d.reason + ")" +
         (d.hosts ? ", it hosts the daemon of others" : "") +
         (d.for_step ? ", others of its step go on" : "");
}
std::string line(const Respawn& r) {
  const std::string refused = r.refused > 0 ? ", not " + std::to_string(r.refused) : "";
  return "respawn " + std::to_string(r.granted) + " in all" + refused +
         ", restarts=" + std::to_string(r.restart_count);
}
std::string line(const Prepare&) { return "prepare"; }
std::string line(const Account& a) {
  return "account, " + std::to_string(a.piece.size()) + " bytes";
}
std::string line(const Alive& a) {
  return "alive, beat in " + std::to_string(a.beat.count()) + " ms";
}

}  // namespace

const char* name_of(Run::State state) {
  switch (state) {
    case Run::State::kGathering: return "gathering";
    case Run::State::kLastCall: return "last call";
    case Run::State::kRunning: return "running";
    case Run::State::kClosing: return "closing";
    case Run::State::kEnded: return "ended";
  }
  return "?";
}

std::string to_string(const RunAction& action) {
  return action.node + " <- " + std::visit([](const auto& m) { return line(m); }, action.message);
}

std::string Run::describe() const {
  return std::string(name_of(state_)) + " round=" + std::to_string(round_) +
         " restarts=" + std::to_string(restart_count_) +
         " ready=" + std::to_string(count(Phase::kReady)) + " seated=" + std::to_string(seated()) +
         " stopping=" + std::to_string(count(Phase::kStopping));
}

}  // namespace ddprun::rendezvous
