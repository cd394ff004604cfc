#include "rendezvous/etcd/etcd_election.h"

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
void EtcdElection::send(const etcd::Request& request, Read read) {
  client_.post(request, kElectionLimit,
               [this, read, sent = Clock::now()](const Result<std::string>& body) {
                 Result<LeadershipEvent> event =
                     body ? read(*body, sent) : Result<LeadershipEvent>(body.error());
                 if (event) return step(*event);
                 log_once("etcd cannot be used: " + to_string(event.error()));
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

void EtcdElection::act(const FindLeader&) {
  send(etcd::get(key_), [this](const std::string& body, TimePoint) -> Result<LeadershipEvent> {
    const auto range = etcd::read_range(body);
    if (!range) return range.error();
    if (!range->found.empty()) log_once("standing by; the leader is " + range->found.front().value);
    return LeadershipEvent(LeaderSeen{!range->found.empty()});
  });
}

void EtcdElection::act(const GrantLease&) {
  send(etcd::grant_lease(options_.lease.count()),
       [](const std::string& body, TimePoint sent) -> Result<LeadershipEvent> {
         const auto lease = etcd::read_lease(body);
         if (!lease) return lease.error();
         return LeadershipEvent(
             LeaseGranted{lease->id, std::chrono::seconds(lease->ttl_seconds), sent});
       });
}

void EtcdElection::act(const Campaign& campaign) {
  send(etcd::create(key_, options_.name, campaign.lease),
       [](const std::string& body, TimePoint) -> Result<LeadershipEvent> {
         const auto outcome = etcd::read_outcome(body);
         if (!outcome) return outcome.error();
         return LeadershipEvent(Campaigned{outcome->succeeded, outcome->revision});
       });
}

void EtcdElection::act(const RenewLease& renew) {
  send(etcd::renew_lease(renew.lease),
       [this](const std::string& body, TimePoint sent) -> Result<LeadershipEvent> {
         const auto lease = etcd::read_lease(body);
         if (!lease) return lease.error();
         last_logged_.clear();
         return LeadershipEvent(LeaseRenewed{std::chrono::seconds(lease->ttl_seconds), sent});
       });
}

void EtcdElection::act(const Lead& lead) {
  last_logged_.clear();
  handlers_.on_lead(lead.term);
}

void EtcdElection::act(const StepDown& down) { handlers_.on_deposed(down.why); }

void EtcdElection::resign(std::function<void()> done) {
  on_released_ = std::move(done);
  step(Resigned{});
  if (on_released_) std::exchange(on_released_, nullptr)();
}

// If this does not reach etcd, the lease ends by itself.
void EtcdElection::act(const ReleaseLease& release) {
  client_.post(etcd::revoke_lease(release.lease), kElectionLimit,
               [done = std::exchange(on_released_, nullptr)](const Result<std::string>&) {
                 if (done) done();
               });
}

// Once, not with each attempt.
void EtcdElection::log_once(const std::string& what) {
  if (std::exchange(last_logged_, what) != what) log::info(what);
}

}  // namespace ddprun::rendezvous
