#include "rendezvous/coordinator.h"

#include <algorithm>
#include <utility>

#include "common/assert.h"

namespace ddprun::rendezvous {
namespace {

constexpr std::size_t kNameBytesMax = 256;

}  // namespace

std::vector<LinkAction> Coordinator::on_message(LinkId link, std::string_view body, TimePoint now) {
  now_ = now;
  Result<AgentMessage> message = decode_agent_message(body);
  const auto peer = peers_.find(link);
  if (!message) {
    actions_.push_back(Hangup{link, to_string(message.error())});
  } else if (const auto* first = std::get_if<Hello>(&*message)) {
    hello(link, *first);
  } else if (peer == peers_.end()) {
    actions_.push_back(Hangup{link, "it did not say hello first"});
  } else {
    hear(link, Peer(peer->second), std::move(*message));
  }
  return std::exchange(actions_, {});
}

void Coordinator::hello(LinkId link, const Hello& hello) {
  if (hello.version != kProtocolVersion) {
    return refuse(link, "it speaks protocol version " + std::to_string(hello.version) +
                            ", this daemon version " + std::to_string(kProtocolVersion) +
                            "; install the same ddprun on every node");
  }
  const bool sane = !hello.run_id.empty() && hello.run_id.size() <= kNameBytesMax &&
                    !hello.node.empty() && hello.node.size() <= kNameBytesMax;
  if (!sane || peers_.contains(link)) return refuse(link, "its hello makes no sense");
  const auto [old, is_new] = links_.try_emplace({hello.run_id, hello.node}, link);
  if (!is_new) {  // The same life of the same agent on a new connection: the old one is dead.
    peers_.erase(old->second);
    actions_.push_back(Hangup{old->second, "the agent connected again"});
    old->second = link;
  }
  peers_[link] = Peer{hello.run_id, hello.node};
  actions_.push_back(Send{link, encode(DaemonMessage(Alive{}))});
}

void Coordinator::hear(LinkId link, const Peer& peer, AgentMessage message) {
  const auto run = runs_.find(peer.run_id);
  const bool joins = std::holds_alternative<Join>(message);
  if (run != runs_.end() && run->second.state() == Run::State::kEnded && joins) {
    // A run id may be used again once everyone of the run before has gone.
    const bool alone = std::none_of(peers_.begin(), peers_.end(), [&](const auto& p) {
      return p.first != link && p.second.run_id == peer.run_id;
    });
    if (alone && !run->second.knows(peer.node)) step(peer.run_id, {"", Begin{}});
  }
  std::visit(
      [&](auto& m) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(m)>, Hello>) {
          step(peer.run_id, {peer.node, std::move(m)});
        }
      },
      message);
}

std::vector<LinkAction> Coordinator::on_closed(LinkId link, TimePoint now) {
  now_ = now;
  const auto it = peers_.find(link);
  if (it != peers_.end()) {
    const Peer peer = it->second;
    peers_.erase(it);
    links_.erase({peer.run_id, peer.node});
    if (runs_.contains(peer.run_id)) step(peer.run_id, {peer.node, Lost{"closed its connection"}});
    forget_blank(peer.run_id);
  }
  return std::exchange(actions_, {});
}

std::vector<LinkAction> Coordinator::on_tick(TimePoint now) {
  now_ = now;
  for (auto& [run_id, run] : runs_) {
    for (Run::Silent& silent : run.silent(now)) {
      step(run_id, {silent.node, Lost{std::move(silent.how)}});
    }
    if (const auto due = run.deadline(); due && *due <= now) step(run_id, {"", Tick{}});
  }
  forget_idle();
  return std::exchange(actions_, {});
}

std::vector<LinkAction> Coordinator::on_shutdown(int signal, TimePoint now) {
  now_ = now;
  for (auto& [run_id, run] : runs_) {
    step(run_id, {"", Cancel{signal, "the rendezvous daemon was told to end"}});
  }
  return std::exchange(actions_, {});
}

void Coordinator::step(const std::string& run_id, const RunEvent& event) {
  Run& run = runs_[run_id];
  if (!std::holds_alternative<Heartbeat>(event.what)) {
    records_ += encode_record(Record{run_id, now_, event});
  }
  for (RunAction& action : run.step(event, now_)) {
    const auto link = links_.find({run_id, action.node});
    if (link != links_.end()) actions_.push_back(Send{link->second, encode(action.message)});
  }
  note_idle(run_id, run);
}

void Coordinator::refuse(LinkId link, const std::string& reason) {
  actions_.push_back(Send{link, encode(DaemonMessage(Refuse{reason}))});
  actions_.push_back(Hangup{link, reason});
}

std::optional<TimePoint> Coordinator::deadline() const {
  std::optional<TimePoint> next;
  for (const auto& [run_id, run] : runs_) {
    const auto due = run.deadline();
    if (due && (!next || *due < *next)) next = due;
  }
  const auto forget = forget_at();
  return next && (!forget || *next < *forget) ? next : forget;
}

std::string Coordinator::take_records() { return std::exchange(records_, {}); }

bool Coordinator::over() const {
  if (!peers_.empty()) return false;
  bool any = false;
  for (const auto& [run_id, run] : runs_) {
    if (run.state() != Run::State::kEnded) return false;
    any = true;
  }
  return any;
}

}  // namespace ddprun::rendezvous
