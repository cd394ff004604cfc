#pragma once
// Which of several daemons decides: the one that holds the leader key in etcd under a lease that by
// its own clock cannot have run out. Pure. etcd_election carries its actions out.
//
//               the key is there            created by us
//   kStandby ─────────▶ (look again)     ┌──────────────────▶ kLeader
//     │ ▲ the key is gone                │                      │ the lease may have run out, or
//     │ └────────── created by another ──┤                      │ another has the key
//     └──▶ kCampaigning: a lease, then the key                  ▼
//                                                             kDeposed  final: this daemon begins
//                                                                       anew, with nothing in mind
//
// Time is this machine's own. A lease counts from the moment before the request that made or
// renewed it was sent, so that ours ends before etcd's does; no two clocks are compared. What an
// old leader still writes is refused by etcd, for each write names the term that it was made in.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/time.h"

namespace ddprun::rendezvous {

using LeaseId = std::int64_t;
using Term =
    std::int64_t;  // The revision that created the leader key: no two leaders' is the same.

// What etcd answered. `sent` is when the request left.
struct LeaderSeen {
  bool present = false;
};
struct LeaseGranted {
  LeaseId lease = 0;
  Milliseconds ttl{0};
  TimePoint sent{};
};
struct Campaigned {
  bool won = false;
  Term term = 0;
};
struct LeaseRenewed {
  Milliseconds ttl{0};  // 0: there is no such lease any more.
  TimePoint sent{};
};
struct RequestFailed {};  // Any of them: no answer, or none that makes sense.
struct Fenced {};         // A write found the key in other hands.
struct TimePassed {};
struct Resigned {};  // This daemon has to end.
using LeadershipEvent = std::variant<LeaderSeen, LeaseGranted, Campaigned, LeaseRenewed,
                                     RequestFailed, Fenced, TimePassed, Resigned>;

struct FindLeader {};
struct GrantLease {};
struct Campaign {
  LeaseId lease = 0;
};
struct RenewLease {
  LeaseId lease = 0;
};
struct Lead {
  Term term = 0;
};
struct StepDown {
  std::string why;
};
struct ReleaseLease {
  LeaseId lease = 0;
};  // And the key with it, so that no daemon has to wait for its end.
using LeadershipAction =
    std::variant<FindLeader, GrantLease, Campaign, RenewLease, Lead, StepDown, ReleaseLease>;

class Leadership {
 public:
  static constexpr Milliseconds kPollInterval{200};
  static constexpr Milliseconds kRetryInterval{100};

  // One request is under way at a time; each is answered by an event, RequestFailed if by no other.
  [[nodiscard]] std::vector<LeadershipAction> step(const LeadershipEvent& event, TimePoint now);

  // When the next TimePassed is due.
  TimePoint deadline() const;
  bool may_decide(TimePoint now) const { return state_ == State::kLeader && now < lease_ends_; }

 private:
  enum class State { kStandby, kCampaigning, kLeader, kDeposed };

  void on(const LeaderSeen& seen);
  void on(const LeaseGranted& granted);
  void on(const Campaigned& campaigned);
  void on(const LeaseRenewed& renewed);
  void on(const RequestFailed&);
  void on(const Fenced&);
  void on(const TimePassed&);
  void on(const Resigned&);
  void send(LeadershipAction request);
  void wait(Duration duration);
  void depose(const std::string& why);

  State state_ = State::kStandby;
  bool requesting_ = false;  // A request is under way.
  TimePoint now_{};
  TimePoint act_at_{};  // When nothing is under way: the next request.
  LeaseId lease_ = 0;
  Milliseconds ttl_{0};
  TimePoint lease_ends_{};
  std::vector<LeadershipAction> actions_;
};

std::string to_string(const LeadershipAction& action);

}  // namespace ddprun::rendezvous
