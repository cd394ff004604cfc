#include "rendezvous/etcd/leadership.h"

#include <array>
#include <catch2/catch.hpp>
#include <functional>
#include <map>
#include <optional>
#include <queue>
#include <random>
#include <set>

namespace ddprun::rendezvous {
namespace {

using namespace std::chrono_literals;
using Lines = std::vector<std::string>;

struct Daemon {
  Leadership leadership;
  TimePoint now{1h};

  Lines receive(const LeadershipEvent& event) {
    Lines lines;
    for (const auto& action : leadership.step(event, now)) lines.push_back(to_string(action));
    return lines;
  }
  Lines wait(Milliseconds duration) {
    now += duration;
    return receive(TimePassed{});
  }
  void win() {
    receive(TimePassed{});
    receive(LeaderSeen{false});
    receive(LeaseGranted{7, 2000ms, now});
    CHECK(receive(Campaigned{true, 42}) == Lines{"lead in term 42"});
  }
};

TEST_CASE("Leadership: who finds no leader asks for a lease, then for the key", "[etcd]") {
  Daemon daemon;
  CHECK(daemon.receive(TimePassed{}) == Lines{"look for the leader"});
  CHECK(daemon.receive(LeaderSeen{true}).empty());
  CHECK(daemon.wait(199ms).empty());
  CHECK(daemon.wait(1ms) == Lines{"look for the leader"});
  CHECK(daemon.receive(LeaderSeen{false}) == Lines{"ask for a lease"});
  CHECK(daemon.receive(LeaseGranted{7, 2000ms, daemon.now}) == Lines{"campaign with lease 7"});
  CHECK_FALSE(daemon.leadership.may_decide(daemon.now));
  CHECK(daemon.receive(Campaigned{false, 0}).empty());
  CHECK(daemon.wait(200ms) == Lines{"look for the leader"});
}

TEST_CASE("Leadership: a leader renews each third and may decide until its lease can have ended",
          "[etcd]") {
  Daemon daemon;
  daemon.win();
  CHECK(daemon.leadership.may_decide(daemon.now));
  CHECK(daemon.wait(666ms) == Lines{"renew lease 7"});
  const TimePoint sent = daemon.now;
  daemon.now += 500ms;  // The answer was long under way; the lease counts from the question.
  CHECK(daemon.receive(LeaseRenewed{2000ms, sent}).empty());
  CHECK(daemon.leadership.may_decide(sent + 1999ms));
  CHECK_FALSE(daemon.leadership.may_decide(sent + 2000ms));
  daemon.now = sent + 2000ms;
  CHECK(daemon.receive(TimePassed{}) == Lines{"step down: etcd has not renewed the lease in time"});
  CHECK(daemon.wait(1h).empty());
  CHECK_FALSE(daemon.leadership.may_decide(daemon.now));
}

TEST_CASE("Leadership: a renewal that comes too late is none", "[etcd]") {
  Daemon daemon;
  daemon.win();
  (void)daemon.wait(666ms);
  const TimePoint sent = daemon.now;
  daemon.now += 3s;  // This process was stopped.
  CHECK(daemon.receive(LeaseRenewed{2000ms, sent}) ==
        Lines{"step down: etcd has not renewed the lease in time"});
}

TEST_CASE("Leadership: whoever is told to end gives its lease back, and never leads again",
          "[etcd]") {
  Daemon daemon;
  daemon.win();
  CHECK(daemon.receive(Resigned{}) == Lines{"release lease 7"});
  CHECK_FALSE(daemon.leadership.may_decide(daemon.now));
  CHECK(daemon.wait(1h).empty());
  CHECK(daemon.receive(Resigned{}).empty());

  Daemon standby;
  CHECK(standby.receive(TimePassed{}) == Lines{"look for the leader"});
  CHECK(standby.receive(Resigned{}).empty());  // It has nothing to give back.
  CHECK(standby.receive(LeaderSeen{false}).empty());
}

TEST_CASE("Leadership: without an answer it asks again, and steps down when fenced", "[etcd]") {
  Daemon daemon;
  daemon.win();
  CHECK(daemon.wait(667ms) == Lines{"renew lease 7"});
  CHECK(daemon.receive(RequestFailed{}).empty());
  CHECK(daemon.wait(100ms) == Lines{"renew lease 7"});
  CHECK(daemon.receive(Fenced{}) == Lines{"step down: another daemon has taken over"});
  Daemon other;
  other.win();
  (void)other.wait(667ms);
  CHECK(other.receive(LeaseRenewed{0ms, other.now}) ==
        Lines{"step down: the lease in etcd has expired"});
}

TEST_CASE("Leadership: a campaign without an answer may have been won, so its lease is released",
          "[etcd]") {
  Daemon daemon;
  daemon.receive(TimePassed{});
  daemon.receive(LeaderSeen{false});
  CHECK(daemon.receive(RequestFailed{}).empty());  // No lease is known.
  CHECK(daemon.wait(100ms) == Lines{"look for the leader"});
  daemon.receive(LeaderSeen{false});
  daemon.receive(LeaseGranted{7, 2000ms, daemon.now});
  CHECK(daemon.receive(RequestFailed{}) == Lines{"release lease 7"});
  CHECK(daemon.wait(100ms) == Lines{"look for the leader"});
  daemon.receive(LeaderSeen{false});
  CHECK(daemon.receive(RequestFailed{}).empty());  // Once.
}

// etcd as far as an election and fenced writes go: one key under a lease, on a clock of its own.
struct FakeEtcd {
  std::int64_t revision = 1;
  LeaseId leases = 0;
  std::map<LeaseId, TimePoint> lease_ends;
  struct Key {
    LeaseId lease;
    Term term;
  };
  std::optional<Key> leader;
  std::vector<Term> written;  // The term of each write that was taken.

  void expire(TimePoint now) {
    std::erase_if(lease_ends, [&](const auto& lease) { return lease.second <= now; });
    if (leader && !lease_ends.contains(leader->lease)) leader.reset();
  }
  LeadershipEvent answer(const LeadershipAction& request, TimePoint sent, TimePoint now) {
    expire(now);
    if (std::holds_alternative<FindLeader>(request)) return LeaderSeen{leader.has_value()};
    if (std::holds_alternative<GrantLease>(request)) {
      lease_ends[++leases] = now + 2s;
      return LeaseGranted{leases, 2000ms, sent};
    }
    if (const auto* campaign = std::get_if<Campaign>(&request)) {
      if (leader || !lease_ends.contains(campaign->lease)) return Campaigned{};
      leader = Key{campaign->lease, ++revision};
      return Campaigned{true, revision};
    }
    const LeaseId lease = std::get<RenewLease>(request).lease;
    if (!lease_ends.contains(lease)) return LeaseRenewed{0ms, sent};
    lease_ends[lease] = now + 2s;
    return LeaseRenewed{2000ms, sent};
  }
  bool write(Term term, TimePoint now) {
    expire(now);
    if (!leader || leader->term != term) return false;
    written.push_back(term);
    return true;
  }
};

// Three daemons that are cut off from etcd, stopped and started again at random.
class Election {
 public:
  explicit Election(std::uint64_t seed) : random_(seed) {}

  void run() {
    for (int i = 0; i < 3; ++i) wake(i);
    while (now_ < TimePoint(1h) + 60s && !timers_.empty()) {
      const Timer timer = timers_.top();
      timers_.pop();
      now_ = timer.when;
      timer.what();
      check();
    }
  }
  int terms() const { return static_cast<int>(seen_.size()); }

 private:
  struct Peer {
    Leadership leadership;
    int life = 0;
    Term term = 0;
    TimePoint stopped_until{}, cut_until{};
  };
  struct Timer {
    TimePoint when;
    std::uint64_t sequence;
    std::function<void()> what;
    bool operator>(const Timer& o) const {
      return std::pair(when, sequence) > std::pair(o.when, o.sequence);
    }
  };

  void after(Milliseconds delay, std::function<void()> what) {
    timers_.push({now_ + delay, sequence_++, std::move(what)});
  }
  Milliseconds latency() { return Milliseconds(1 + random_() % (random_() % 20 == 0 ? 1500 : 10)); }

  // No two may decide; a writer is in the newest term, and terms only go up.
  void check() {
    int deciding = 0;
    for (const Peer& peer : peers_) deciding += peer.leadership.may_decide(now_);
    REQUIRE(deciding <= 1);
    REQUIRE(std::is_sorted(etcd_.written.begin(), etcd_.written.end()));
  }

  void receive(int i, const LeadershipEvent& event) {
    Peer& peer = peers_[i];
    for (const LeadershipAction& action : peer.leadership.step(event, now_)) {
      if (const auto* lead = std::get_if<Lead>(&action)) {
        peer.term = lead->term;
        seen_.insert(lead->term);
        write(i, peer.life);
      } else if (std::holds_alternative<StepDown>(action)) {
        peer.leadership = Leadership();
        peer.term = 0;
        ++peer.life;
      } else {
        request(i, action);
      }
    }
  }

  void request(int i, const LeadershipAction& action) {
    const auto deliver = [this, i, life = peers_[i].life](const LeadershipEvent& event) {
      when_awake(i, [this, i, life, event] {
        if (peers_[i].life == life) receive(i, event);
      });
    };
    if (const auto* release = std::get_if<ReleaseLease>(&action)) {  // Not waited for.
      if (now_ < peers_[i].cut_until) return;
      return after(latency(), [this, lease = release->lease] { etcd_.lease_ends.erase(lease); });
    }
    if (now_ < peers_[i].cut_until) return after(500ms, [=] { deliver(RequestFailed{}); });
    after(latency(), [this, i, action, deliver, sent = now_] {
      const LeadershipEvent event = etcd_.answer(action, sent, now_);
      // The answer may get lost, after all was done.
      if (now_ < peers_[i].cut_until) return after(500ms, [=] { deliver(RequestFailed{}); });
      after(latency(), [=] { deliver(event); });
    });
  }

  void when_awake(int i, const std::function<void()>& what) {
    if (now_ >= peers_[i].stopped_until) return what();
    after(std::chrono::duration_cast<Milliseconds>(peers_[i].stopped_until - now_) + 1ms,
          [=, this] { when_awake(i, what); });
  }

  // A leader writes all the time, each write long under way.
  void write(int i, int life) {
    if (peers_[i].life != life) return;
    if (peers_[i].leadership.may_decide(now_) && now_ >= peers_[i].cut_until) {
      after(latency() * 3, [this, i, life, term = peers_[i].term] {
        const bool taken = etcd_.write(term, now_);
        when_awake(i, [=, this] {
          if (!taken && peers_[i].life == life) receive(i, Fenced{});
        });
      });
    }
    after(20ms, [=, this] { when_awake(i, [=, this] { write(i, life); }); });
  }

  void wake(int i) {
    if (random_() % 100 == 0) peers_[i].stopped_until = now_ + Milliseconds(random_() % 8000);
    if (random_() % 100 == 0) peers_[i].cut_until = now_ + Milliseconds(random_() % 8000);
    when_awake(i, [=, this] {
      if (peers_[i].leadership.deadline() <= now_) receive(i, TimePassed{});
    });
    after(Milliseconds(5 + random_() % 20), [=, this] { wake(i); });
  }

  std::mt19937_64 random_;
  TimePoint now_{1h};
  std::uint64_t sequence_ = 0;
  std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
  FakeEtcd etcd_;
  std::array<Peer, 3> peers_;
  std::set<Term> seen_;
};

TEST_CASE("Leadership: whatever fails, one decides at a time and an old term writes nothing",
          "[etcd][sim]") {
  int terms = 0;
  for (std::uint64_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    Election election(seed);
    election.run();
    REQUIRE(election.terms() >= 1);
    terms += election.terms();
  }
  CHECK(terms > 120);  // Leaders did lose their leadership.
}

}  // namespace
}  // namespace ddprun::rendezvous
