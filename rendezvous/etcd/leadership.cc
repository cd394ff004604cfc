#include "rendezvous/etcd/leadership.h"

#include <algorithm>
#include <utility>

#include "common/system/log.h"

namespace ddprun::rendezvous {
namespace {

using Clock = std::chrono::steady_clock;

// Short against any lease, so that a dead endpoint leaves time for another one.
constexpr Milliseconds kElectionLimit{500};

}  // namespace

EtcdElection::EtcdElection(boost::asio::io_context& io, const EtcdOptions& options,
                           Handlers handlers)
    : options_(options),
      key_(options.prefix + "/leader"),
      handlers_(std::move(handlers)),
      client_(io, options.endpoints, options.access),
      timer_(io) {}

// `read` makes the event of the answer and of when the request was sent.
template <class Read>
void EtcdElection::ask(const etcd::Request& request, Read read) {
  client_.post(request, kElectionLimit,
               [this, read, sent = Clock::now()](const Result<std::string>& body) {
                 Result<LeadershipEvent> event =
                     body ? read(*body, sent) : Result<LeadershipEvent>(body.error());
                 if (event) return step(*event);
                 say("etcd cannot be used: " + to_string(event.error()));
                 step(RequestFailed{});
               });
}

void EtcdElection::step(const LeadershipEvent& event) {
  for (const LeadershipAction& action : leadership_.step(event, Clock::now())) {
    log::debug("election: " + to_string(action));
    std::visit([this](const auto& what) { act(what); }, action);
  }
  arm();
}

void EtcdElection::arm() {
  const TimePoint due = leadership_.deadline();
  if (due == TimePoint::max()) return static_cast<void>(timer_.cancel());
  timer_.expires_at(due);
  timer_.async_wait([this](const boost::system::error_code& ec) {
    if (!ec) step(TimePassed{});
  });
}

void EtcdElection::act(const LookForLeader&) {
  ask(etcd::get(key_), [this](const std::string& body, TimePoint) -> Result<LeadershipEvent> {
    const auto range = etcd::read_range(body);
    if (!range) return range.error();
    if (!range->found.empty()) say("standing by; the leader is " + range->found.front().value);
    return LeadershipEvent(LeaderSeen{!range->found.empty()});
  });
}

void EtcdElection::act(const GrantLease&) {
  ask(etcd::grant_lease(options_.lease.count()),
      [](const std::string& body, TimePoint sent) -> Result<LeadershipEvent> {
        const auto lease = etcd::read_lease(body);
        if (!lease) return lease.error();
        return LeadershipEvent(
            LeaseGranted{lease->id, std::chrono::seconds(lease->ttl_seconds), sent});
      });
}

void EtcdElection::act(const Campaign& campaign) {
  ask(etcd::create(key_, options_.name, campaign.lease),
      [](const std::string& body, TimePoint) -> Result<LeadershipEvent> {
        const auto outcome = etcd::read_outcome(body);
        if (!outcome) return outcome.error();
        return LeadershipEvent(Campaigned{outcome->succeeded, outcome->revision});
      });
}

void EtcdElection::act(const RenewLease& renew) {
  ask(etcd::renew_lease(renew.lease),
      [this](const std::string& body, TimePoint sent) -> Result<LeadershipEvent> {
        const auto lease = etcd::read_lease(body);
        if (!lease) return lease.error();
        said_.clear();
        return LeadershipEvent(LeaseRenewed{std::chrono::seconds(lease->ttl_seconds), sent});
      });
}

void EtcdElection::act(const Lead& lead) {
  said_.clear();
  handlers_.on_lead(lead.term);
}

void EtcdElection::act(const StepDown& down) { handlers_.on_deposed(down.why); }

void EtcdElection::resign(std::function<void()> done) {
  on_released_ = std::move(done);
  step(Resigned{});
  if (on_released_) std::exchange(on_released_, nullptr)();
}

// If etcd does not hear of it the lease ends by itself.
void EtcdElection::act(const ReleaseLease& release) {
  client_.post(etcd::revoke_lease(release.lease), kElectionLimit,
               [done = std::exchange(on_released_, nullptr)](const Result<std::string>&) {
                 if (done) done();
               });
}

// Once, not with each attempt.
void EtcdElection::say(const std::string& what) {
  if (std::exchange(said_, what) != what) log::info(what);
}

std::vector<LeadershipAction> Leadership::step(const LeadershipEvent& event, TimePoint now) {
  now_ = now;
  const bool answer = !std::holds_alternative<Fenced>(event) &&
                      !std::holds_alternative<TimePassed>(event) &&
                      !std::holds_alternative<Resigned>(event);
  if (answer) asking_ = false;
  if (state_ == State::kLeader && now >= lease_ends_) {
    depose("etcd has not renewed the lease in time");  // Even if it says now that it would have.
  } else if (state_ != State::kDeposed) {
    std::visit([this](const auto& what) { on(what); }, event);
  }
  return std::exchange(actions_, {});
}

TimePoint Leadership::deadline() const {
  if (state_ == State::kDeposed) return TimePoint::max();
  if (state_ == State::kLeader) return asking_ ? lease_ends_ : std::min(act_at_, lease_ends_);
  return asking_ ? TimePoint::max() : act_at_;
}

void Leadership::ask(LeadershipAction request) {
  asking_ = true;
  actions_.push_back(std::move(request));
}

void Leadership::wait(Duration duration) { act_at_ = now_ + duration; }

void Leadership::depose(const std::string& why) {
  state_ = State::kDeposed;
  actions_.push_back(StepDown{why});
}

void Leadership::on(const LeaderSeen& seen) {
  if (state_ != State::kStandby) return;
  if (seen.present) return wait(kLookInterval);
  state_ = State::kCampaigning;
  lease_ = 0;
  ask(GrantLease{});
}

void Leadership::on(const LeaseGranted& granted) {
  if (state_ != State::kCampaigning) return;
  lease_ = granted.lease;
  ttl_ = granted.ttl;
  lease_ends_ = granted.sent + granted.ttl;
  ask(Campaign{lease_});
}

void Leadership::on(const Campaigned& campaigned) {
  if (state_ != State::kCampaigning) return;
  // The lease of one who lost ends by itself. A key won under one that may have ended goes with it.
  if (!campaigned.won || now_ >= lease_ends_) {
    state_ = State::kStandby;
    return wait(kLookInterval);
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
  if (asking_ || now_ < act_at_) return;
  if (state_ == State::kStandby) return ask(LookForLeader{});
  if (state_ == State::kLeader) ask(RenewLease{lease_});
}

void Leadership::on(const Resigned&) {
  if (state_ == State::kLeader) actions_.push_back(ReleaseLease{lease_});
  state_ = State::kDeposed;
}

std::string to_string(const LeadershipAction& action) {
  struct Words {
    std::string operator()(const LookForLeader&) const { return "look for the leader"; }
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
  return std::visit(Words{}, action);
}

}  // namespace ddprun::rendezvous
