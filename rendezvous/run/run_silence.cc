// The part of Run that tells silence from loss: how often nodes beat, who is silent, who is
// expected back, and what a standstill of the daemon means.

#include <algorithm>
#include <utility>

#include "common/assert.h"
#include "rendezvous/run/run.h"

namespace ddprun::rendezvous {
namespace {

constexpr Milliseconds kReturnTime{10'000};  // For agents to find a daemon that is back.
// Enough for three retransmissions of TCP in a row, each after twice the time of the one before.
constexpr int kRoundTripsInSilence = 20;
// A kernel says in ticks of its clock when a packet came: it may say a little too early.
constexpr Milliseconds kKernelTicks{20};

}  // namespace

Milliseconds Run::beat() const {
  const RunConfig config = config_.value_or(RunConfig());
  // Those that will come count too, else the first ones beat too often while the others join.
  const std::size_t nodes = std::max(members_.size(), static_cast<std::size_t>(config.nnodes_min));
  return std::max({beat_interval(config.heartbeat_timeout), beat_floor_, beat_interval_of(nodes)});
}

// A node that was told to beat less often must be given more time, and so must one that is far.
Milliseconds Run::patience(const Member& member) const {
  DDPRUN_ASSERT(config_);
  return std::max({config_->heartbeat_timeout, kBeatsInTimeout * member.beat,
                   kRoundTripsInSilence * member.round_trip});
}

std::vector<NodeId> Run::quiet(TimePoint now) const {
  std::vector<NodeId> quiet;
  if (!silence_check_ || now < *silence_check_ || state_ == State::kEnded) return quiet;
  for (const auto& [node, member] : members_) {
    if (!member.missing && now - member.last_seen >= patience(member) / 2) quiet.push_back(node);
  }
  return quiet;
}

std::optional<Milliseconds> Run::reached(const NodeId& node, const Reach& reach, TimePoint now) {
  const auto it = members_.find(node);
  if (it == members_.end()) return std::nullopt;
  Member& member = it->second;
  const Milliseconds before = patience(member);
  member.round_trip = reach.round_trip;
  // The caller sends it something now. The age of its last answer alone means nothing: while we
  // were late nothing was sent that it could have answered.
  if (!member.asked || reach.answered + kKernelTicks >= *member.asked) member.asked = now;
  const Milliseconds wanted = std::max(config_->heartbeat_timeout, kBeatsInTimeout * member.beat);
  const Milliseconds limit = patience(member);
  return limit > wanted && before <= wanted ? std::optional(limit) : std::nullopt;
}

std::vector<Run::Silent> Run::silent(TimePoint now) {
  if (!silence_check_ || now < *silence_check_) return {};
  if (members_.empty() || state_ == State::kEnded) {
    silence_check_.reset();
    return {};
  }
  std::vector<Silent> silent;
  TimePoint next = now + config_->heartbeat_timeout;
  for (const auto& [node, member] : members_) {
    const Milliseconds limit = patience(member);
    const Milliseconds longest = std::max(limit, config_->standstill_timeout);
    const Duration silence = now - member.last_seen;
    // Asked when half of the limit was over, a kernel that is there has answered long since.
    const bool answers = !member.missing && member.asked && now - *member.asked < limit * 3 / 8;
    if (silence < limit || (answers && silence < longest)) {
      next = std::min(next, look_again(member, now));
    } else {
      const Milliseconds over = answers ? longest : limit;
      silent.push_back({node, member.missing
                                  ? "did not come back"
                                  : "was silent for " + std::to_string(over.count()) + " ms" +
                                        (answers ? ", though its host answers" : "")});
    }
  }
  silence_check_ = next;
  return silent;
}

// When something may have to be done about a member's silence.
TimePoint Run::look_again(const Member& member, TimePoint now) const {
  const Milliseconds limit = patience(member);
  if (member.missing) return member.last_seen + limit;
  if (now - member.last_seen < limit / 2) return member.last_seen + limit / 2;
  const TimePoint soon = now + limit / kBeatsInTimeout;
  return now - member.last_seen < limit ? std::min(member.last_seen + limit, soon) : soon;
}

bool Run::misses(const NodeId& node) const {
  const auto it = members_.find(node);
  return it != members_.end() && it->second.missing;
}

// It has no connection, and is not lost: it gets time to come back, once.
void Run::expect_back(Member& member, Milliseconds within) {
  if (std::exchange(member.missing, true)) return;
  const Milliseconds time = std::max({kReturnTime, within, 3 * kBeatsInTimeout * beat()});
  member.last_seen = now_ + time;
  // One that has stopped its workers meanwhile could not say so.
  if (member.phase == Phase::kStopping) stop_ends_ = std::max(stop_ends_, now_ + time);
}

void Run::on(const NodeId& node, const Away&) {
  const auto it = members_.find(node);
  // Once all is over a node that goes is gone; if it does come back it hears the verdict.
  if (it == members_.end() || state_ == State::kEnded) return;
  expect_back(it->second, config_->standstill_timeout);
}

void Run::on(const NodeId& node, const Unseen&) {
  const auto it = members_.find(node);
  if (it != members_.end() && state_ != State::kEnded) expect_back(it->second, kReturnTime);
}

void Run::on(const NodeId&, const Recovered&) {
  // Nodes need time to find us again; what they have to say they will say when they have. One that
  // did not come back to our predecessor gets no more time from us.
  for (auto& [node, member] : members_) expect_back(member, kReturnTime);
  if (config_ && gathering()) gather_ends_ = now_ + config_->join_timeout;
}

void Run::on(const NodeId& node, const Returned&) {
  const auto it = members_.find(node);
  if (it == members_.end()) return;
  it->second.missing = false;
  it->second.last_seen = now_;
}

// Whatever was due in 5 s is due in 5 s. Nodes may have stood still with us and may wake a little
// later: after a long standstill they have all of their time again.
void Run::on(const NodeId&, const StoodStill& still) {
  if (!config_ || state_ == State::kEnded) return;
  gather_ends_ += still.how_long;
  last_call_ends_ += still.how_long;
  stop_ends_ += still.how_long;
  if (grow_at_) *grow_at_ += still.how_long;
  for (auto& [node, member] : members_) {
    const bool anew = !member.missing && still.how_long >= config_->heartbeat_timeout;
    member.last_seen = anew ? now_ : member.last_seen + still.how_long;
    if (!member.missing) member.last_seen = std::min(member.last_seen, now_);
    member.asked.reset();  // A kernel that answered meanwhile may not have been heard by ours.
  }
}

}  // namespace ddprun::rendezvous
