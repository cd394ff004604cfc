// Streams between hosts that cannot reach each other: whom the daemon calls, whom it answers, and
// which two ends it joins. Their bytes are not simulated.

#include <utility>

#include "rendezvous/protocol/wire.h"
#include "tests/sim/sim_cluster.h"

namespace ddprun::sim {

using namespace std::chrono_literals;
using rendezvous::Relays;

namespace {

// Both show which stream was meant, whatever number the daemon gave it.
int port_of(std::size_t stream) { return 1 + static_cast<int>(stream); }
std::size_t stream_of(int port) { return static_cast<std::size_t>(port - 1); }

constexpr std::size_t kStreams = 60'000;  // As many as there are ports.

}  // namespace

void Cluster::dial_later(const std::string& name) {
  after(Milliseconds(200 + random_() % 6000), [this, name] {
    if (streams_.size() < kStreams) dial(name);
    dial_later(name);
  });
}

// By a process of the host, to another one.
void Cluster::dial(const std::string& name) {
  const Host& host = hosts_.at(name);
  if (!host.agent || host.cut() || stands(host) || !daemon_) return;
  const auto other = std::next(hosts_.begin(), static_cast<long>(random_() % hosts_.size()));
  if (other->first == name) return;
  const LinkId id = link_next_++;
  const std::size_t stream = streams_.size();
  streams_.emplace_back();
  ends_[id] = {stream, /*dials=*/true};
  const rendezvous::Dial dial{.run_id = "job", .node = other->second.node, .port = port_of(stream)};
  end_sends(id, rendezvous::encode(rendezvous::RelayRequest(dial)), latency(host));
  if (chance(15)) end_sends(id, std::nullopt, Milliseconds(random_() % 12'000));
  expect_answer(stream);
}

// Over a connection of its own, which breaks when the daemon dies. Nothing: it is closed.
void Cluster::end_sends(LinkId id, std::optional<std::string> what, Milliseconds delay) {
  after(delay, [this, id, what = std::move(what), life = daemon_life_] {
    if (!daemon_ || daemon_life_ != life || !ends_.contains(id)) return;
    if (daemon_stands()) {
      const auto left = std::chrono::duration_cast<Milliseconds>(daemon_stands_until_ - now_);
      return end_sends(id, what, left + Milliseconds(1 + random_() % 50));
    }
    if (!what) {
      streams_[ends_.at(id).stream].given_up = true;
      ends_.erase(id);
    }
    daemon_takes(id, what);
  });
}

// Unless the daemon has died or stood still meanwhile, or its disk has.
void Cluster::expect_answer(std::size_t stream) {
  after(Relays::kPatience + 5s, [this, stream, life = daemon_life_] {
    const Stream& wanted = streams_[stream];
    if (wanted.answered || wanted.given_up || !daemon_ || daemon_life_ != life) return;
    const TimePoint calm = std::max({daemon_woke_, daemon_stands_until_, disk_freed_});
    if (disk_full_ || now_ < calm + Relays::kPatience + 3s) return expect_answer(stream);
    check(false, "who has dialled has waited for an answer for too long");
  });
}

// The agent that is called connects to the daemon, which may be another one by then.
void Cluster::meet_later(const std::string& name, const rendezvous::Relay& call) {
  after(latency(hosts_.at(name)) + 1ms, [this, name, call, life = hosts_.at(name).life] {
    when_awake(name, [this, name, call, life] {
      const Host& host = hosts_.at(name);
      if (!host.agent || host.life != life || host.cut() || !daemon_) return;
      const rendezvous::Meet meet{.run_id = "job",
                                  .node = host.node,
                                  .stream = call.stream,
                                  .error = chance(10) ? "nothing listens" : ""};
      for (int times = chance(5) ? 2 : 1; times > 0; --times) {
        const LinkId id = link_next_++;
        ends_[id] = {stream_of(call.port), /*dials=*/false};
        end_sends(id, rendezvous::encode(rendezvous::RelayRequest(meet)), latency(host));
      }
    });
  });
}

// True: what the daemon does concerns ends of streams.
bool Cluster::ends_hear(const rendezvous::LinkAction& action) {
  if (const auto* bridge = std::get_if<rendezvous::Bridge>(&action)) {
    join(*bridge);
    return true;
  }
  const auto* send = std::get_if<rendezvous::Send>(&action);
  const LinkId id = send ? send->link : std::get<rendezvous::Hangup>(action).link;
  const auto found = ends_.find(id);
  if (found == ends_.end()) return false;
  const StreamEnd end = found->second;
  Stream& stream = streams_[end.stream];
  if (!send) {
    check(!end.dials || stream.answered, "the daemon hangs up on who has dialled");
    ends_.erase(found);
    return true;
  }
  check(rendezvous::decode_joined(send->body).has_value(), "no answer to a dialer: " + send->body);
  if (end.dials) check(!std::exchange(stream.answered, true), "a dialer is answered twice");
  return true;
}

// One of them may have gone while the disk was waited for.
void Cluster::join(const rendezvous::Bridge& bridge) {
  const auto dialer = ends_.extract(bridge.dialer), agent = ends_.extract(bridge.agent);
  if (agent) check(!streams_[agent.mapped().stream].joined, "a stream is joined twice");
  if (!dialer || !agent) return;
  const StreamEnd a = dialer.mapped(), b = agent.mapped();
  check(a.dials && !b.dials && a.stream == b.stream, "ends of two streams are joined");
  streams_[a.stream].joined = true;
  ++joined_;
  after(Milliseconds(random_() % 30'000), [slot = bridge.slot] {});  // It is in use so long.
}

}  // namespace ddprun::sim
