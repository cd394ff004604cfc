// Processes that stand still while their kernels do not, and cables that lose packets.

#include <algorithm>
#include <utility>

#include "tests/sim/sim_cluster.h"

namespace ddprun::sim {

using namespace std::chrono_literals;

namespace {

constexpr Milliseconds kFar{200};  // One way.
constexpr Milliseconds kDelayedAcknowledgement{40};

Milliseconds whole(Duration duration) { return std::chrono::duration_cast<Milliseconds>(duration); }

}  // namespace

void Cluster::stop_daemon(Milliseconds how_long) {
  if (!daemon_) return;
  trace("the daemon stands still for " + std::to_string(how_long.count()) + " ms");
  const bool stands = now_ < daemon_stands_until_;
  daemon_stands_until_ = std::max(daemon_stands_until_, now_ + how_long);
  if (stands) return;
  after(how_long, [this, since = now_, life = daemon_life_] {
    if (daemon_ && daemon_life_ == life) daemon_wakes(since);
  });
}

// It measures its standstill from when its timer was due, a while after it began.
void Cluster::daemon_wakes(TimePoint stood_since) {
  if (now_ < daemon_stands_until_) {
    return after(whole(daemon_stands_until_ - now_), [this, stood_since, life = daemon_life_] {
      if (daemon_ && daemon_life_ == life) daemon_wakes(stood_since);
    });
  }
  const Milliseconds late = whole(now_ - stood_since) - Milliseconds(random_() % 500);
  daemon_woke_ = now_;
  trace("the daemon goes on; its timer was late by " + std::to_string(late.count()) + " ms");
  if (late < 250ms) return;
  twin_.reset();
  daemon_does(daemon_->on_standstill(late, daemon_now()));
}

// The tick, and before it what the kernels of silent nodes show.
void Cluster::daemon_polls() {
  for (const LinkId link : daemon_->quiet(daemon_now())) {
    if (daemon_) daemon_reads(link);
  }
  if (daemon_) daemon_takes(0, std::nullopt);
}

void Cluster::daemon_reads(LinkId id) {
  Link& link = links_.at(id);
  take_acknowledgements(id);
  const rendezvous::Reach reach{link.answered, hosts_.at(link.host).lossy ? 2 * kFar : 1ms};
  // The twin knows the same of it.
  if (twin_) (void)twin_->on_reach(id, reach, daemon_now());
  daemon_does(daemon_->on_reach(id, reach, daemon_now()));
}

// A kernel acknowledges what arrives whether or not its agent stands still, and nothing else: where
// the daemon sends nothing there is no answer.
void Cluster::will_acknowledge(LinkId id) {
  take_acknowledgements(id);
  Link& link = links_.at(id);
  const bool lossy = hosts_.at(link.host).lossy;
  link.acknowledged.push_back(daemon_now() + (lossy ? resending() : kDelayedAcknowledgement));
}

void Cluster::take_acknowledgements(LinkId id) {
  Link& link = links_.at(id);
  const Host& host = hosts_.at(link.host);
  const bool there = link.agent_side && host.link == id && !host.cut();
  std::erase_if(link.acknowledged, [&](TimePoint when) {
    if (when > daemon_now()) return false;
    if (there) link.answered = std::max(link.answered, when);
    return true;
  });
}

void Cluster::stop_agent(const std::string& name, Milliseconds how_long) {
  Host& host = hosts_.at(name);
  if (!host.agent) return;
  trace(host.node + " stands still for " + std::to_string(how_long.count()) + " ms");
  host.stands_until = std::max(host.stands_until, now_ + how_long);
}

// They do not all go on in the same moment.
void Cluster::stop_all(Milliseconds how_long) {
  stop_daemon(how_long);
  for (const auto& [name, host] : hosts_) {
    stop_agent(name, how_long + Milliseconds(random_() % 2000));
  }
}

void Cluster::when_awake(const std::string& name, std::function<void()> what) {
  const Host& host = hosts_.at(name);
  if (!stands(host)) return what();
  const Milliseconds left = whole(host.stands_until - now_);
  after(left + Milliseconds(1 + random_() % 20),
        [this, name, what = std::move(what)] { when_awake(name, what); });
}

void Cluster::spoil_cable(const std::string& name) { hosts_.at(name).lossy = true; }

// How long a packet takes that may have to be sent again, each time after twice the time. Run gives
// a node as long as three times in a row may take; one packet in 600 would need more.
Milliseconds Cluster::resending() {
  Milliseconds total = kFar;
  for (Milliseconds again(700); chance(20) && again < 3s; again *= 2) total += again;
  return total;
}

Milliseconds Cluster::latency(const Host& host) { return host.lossy ? resending() : latency(); }

void Cluster::notice_failure(const std::string& name, std::size_t local_rank) {
  ++failures_;
  const Host& host = hosts_.at(name);
  const Worker& worker = host.workers[local_rank];
  if (host.agent && worker.alive && worker.round >= 0 && !worker.left) {
    failed_in_.insert(worker.round);
  }
}

}  // namespace ddprun::sim
