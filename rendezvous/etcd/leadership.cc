#include "rendezvous/etcd/leadership.h"

#include <algorithm>
#include <utility>

namespace ddprun::rendezvous {

std::vector<LeadershipAction> Leadership::step(const LeadershipEvent& event, TimePoint now) {
  now_ = now;
  const bool answer = !std::holds_alternative<Fenced>(event) &&
                      !std::holds_alternative<TimePassed>(event) &&
                      !std::holds_alternative<Resigned>(event);
  if (answer) requesting_ = false;
  if (state_ == State::kLeader && now >= lease_ends_) {
    depose("etcd has not renewed the lease in time");  // Even if its late answer is that it did.
  } else if (state_ != State::kDeposed) {
    std::visit([this](const auto& what) { on(what); }, event);
  }
  return std::exchange(actions_, {});
}

TimePoint Leadership::deadline() const {
  if (state_ == State::kDeposed) return TimePoint::max();
  if (state_ == State::kLeader) return requesting_ ? lease_ends_ : std::min(act_at_, lease_ends_);
  return requesting_ ? TimePoint::max() : act_at_;
}

void Leadership::send(LeadershipAction request) {
  requesting_ = true;
  actions_.push_back(std::move(request));
}

void Leadership::wait(Duration duration) { act_at_ = now_ + duration; }

void Leadership::depose(const std::string& why) {
  state_ = State::kDeposed;
  actions_.push_back(StepDown{why});
}

void Leadership::on(const LeaderSeen& seen) {
  if (state_ != State::kStandby) return;
  if (seen.present) return wait(kPollInterval);
  state_ = State::kCampaigning;
  lease_ = 0;
  send(GrantLease{});
}

void Leadership::on(const LeaseGranted& granted) {
  if (state_ != State::kCampaigning) return;
  lease_ = granted.lease;
  ttl_ = granted.ttl;
  lease_ends_ = granted.sent + granted.ttl;
  send(Campaign{lease_});
}

void Leadership::on(const Campaigned& campaigned) {
  if (state_ != State::kCampaigning) return;
  // A candidate that lost lets its lease end by itself. A key that was won under a lease that may
  // have ended goes with the lease.
  if (!campaigned.won || now_ >= lease_ends_) {
    state_ = State::kStandby;
    return wait(kPollInterval);
  }
  state_ = State::kLeader;
  wait(ttl_ / 3);
  actions_.push_back(Lead{campaigned.term});
}

void Leadership::on(const LeaseRenewed& renewed) {
  if (state_ != State::kLeader) return;
  if (renewed.ttl <= Milliseconds(0)) return depose("the lease in etcd has expired");
  lease_ends_ = std::max(lease_ends_, renewed.sent + renewed.ttl);
  wait(ttl_ / 3);
}

// The answer may be lost of a campaign that was won: with its lease the key goes at once, which we
// would take for another's until it runs out.
void Leadership::on(const RequestFailed&) {
  if (state_ == State::kCampaigning) {
    state_ = State::kStandby;
    if (lease_ != 0) actions_.push_back(ReleaseLease{std::exchange(lease_, 0)});
  }
  wait(kRetryInterval);
}

void Leadership::on(const Fenced&) {
  if (state_ == State::kLeader) depose("another daemon has taken over");
}

void Leadership::on(const TimePassed&) {
  if (requesting_ || now_ < act_at_) return;
  if (state_ == State::kStandby) return send(FindLeader{});
  if (state_ == State::kLeader) send(RenewLease{lease_});
}

void Leadership::on(const Resigned&) {
  if (state_ == State::kLeader) actions_.push_back(ReleaseLease{lease_});
  state_ = State::kDeposed;
}

std::string to_string(const LeadershipAction& action) {
  struct Description {
    std::string operator()(const FindLeader&) const { return "look for the leader"; }
    std::string operator()(const GrantLease&) const { return "ask for a lease"; }
    std::string operator()(const Campaign& c) const {
      return "campaign with lease " + std::to_string(c.lease);
    }
    std::string operator()(const RenewLease& r) const {
      return "renew lease " + std::to_string(r.lease);
    }
    std::string operator()(const Lead& l) const { return "lead in term " + std::to_string(l.term); }
    std::string operator()(const StepDown& s) const { return "step down: " + s.why; }
    std::string operator()(const ReleaseLease& r) const {
      return "release lease " + std::to_string(r.lease);
    }
  };
  return std::visit(Description{}, action);
}

}  // namespace ddprun::rendezvous
