// The simulated daemon's shell: disk, clock, death and return.

#include <algorithm>
#include <csignal>
#include <utility>

#include "rendezvous/protocol/wire_request.h"
#include "tests/sim/sim_cluster.h"

namespace ddprun::sim {

using namespace std::chrono_literals;
using rendezvous::Gate;

namespace {

std::string text_of(const rendezvous::LinkAction& action) {
  if (const auto* send = std::get_if<rendezvous::Send>(&action)) {
    return std::to_string(send->link) + " <- " + send->body + "\n";
  }
  return std::to_string(std::get<rendezvous::Hangup>(action).link) + " hang up\n";
}

// Gate and Coordinator alike.
auto take(auto& daemon, LinkId link, const std::optional<std::string>& body, TimePoint now) {
  if (link == 0) return daemon.on_tick(now);
  return body ? daemon.on_message(link, *body, now) : daemon.on_closed(link, now);
}

}  // namespace

// Sometimes on another boot, or another host: a clock that has nothing to do with the one before.
void Cluster::start_daemon() {
  if (daemon_ || deserted_) return;
  daemon_ = std::make_unique<Gate>();
  daemon_->number_streams_from(1 + 100'000 * static_cast<std::uint64_t>(daemon_life_));
  ++daemon_life_;
  if (chance(40)) {
    ++daemon_boot_;
    clock_offset_ = std::chrono::milliseconds(random_() % 36'000'000) - 50min;
  }
  const rendezvous::Journal journal = rendezvous::decode_journal(disk_);
  check(!journal.refusal, "the journal is refused");
  disk_.resize(journal.bytes_good);
  Gate::Work work = daemon_->replay(journal, daemon_now(), "boot " + std::to_string(daemon_boot_));
  trace("the daemon is back: " + (run() ? run()->describe() : "nothing known"));
  daemon_does(std::move(work));
}

void Cluster::kill_daemon(bool torn_record) {
  if (!daemon_) return;
  if (torn_record && disk_.size() > 4) disk_ += disk_.substr(0, 1 + random_() % 40);
  daemon_.reset();
  twin_.reset();
  backlog_.clear();
  ends_.clear();
  daemon_stands_until_ = daemon_woke_ = {};
  trace("the daemon dies");
  for (auto& [id, link] : links_) {
    link.up.clear();
    link.down.clear();
    link.daemon_side = false;
    const Host& host = hosts_.at(link.host);
    if (host.cut_down || host.link != id) continue;
    put_down(id, std::nullopt);
  }
  after(Milliseconds(10 + random_() % 3000), [this] { start_daemon(); });
}

void Cluster::desert() {
  deserted_ = true;
  if (!daemon_) return;
  trace("the daemon goes for good");
  for (rendezvous::LinkAction& action : daemon_->coordinator().farewell()) daemon_sends(action);
  daemon_.reset();
  twin_.reset();
  backlog_.clear();
  ends_.clear();
  for (auto& [id, link] : links_) {
    if (!std::exchange(link.daemon_side, false)) continue;
    link.up.clear();
    put_down(id, std::nullopt);
  }
}

void Cluster::kill_daemon_on_next_record() { die_on_record_ = true; }

void Cluster::free_disk() {
  if (std::exchange(disk_full_, false)) disk_freed_ = now_;
  write_backlog();
}

// A daemon brought back from its snapshot decides, sends and records what the other one does.
void Cluster::daemon_takes(LinkId link, const std::optional<std::string>& body) {
  if (!daemon_->idle() || daemon_->stalled() || chance(1)) twin_.reset();
  // No snapshot contains that the daemon has just stood still.
  const bool awake = now_ - daemon_woke_ > 3s;
  // Nor which streams wait for their second end.
  if (!options_.relays && !twin_ && daemon_->idle() && !daemon_->stalled() && awake && chance(2))
    make_twin(link);
  if (body && body->find("\"hello\"") != std::string::npos) {
    links_.at(link).hello = *body;
    links_.at(link).hello_sequence = ++sequence_;
  }
  std::string expected;
  Gate::Work work = take(*daemon_, link, body, daemon_now());
  if (twin_) {
    for (const auto& action : take(*twin_, link, body, daemon_now())) expected += text_of(action);
    const std::string records = twin_->take_records();
    check(records == work.records,
          "a restored daemon records\n" + records + "where the other records\n" + work.records);
  }
  sent_.clear();
  daemon_does(std::move(work));
  if (!twin_ || !daemon_ || !daemon_->idle()) return;
  check(sent_ == expected,
        "a restored daemon says\n" + expected + "where the other says\n" + sent_);
  if (!chance(10)) return;
  const bool same = twin_->snapshot(daemon_now()) == daemon_->coordinator().snapshot(daemon_now());
  check(same, "a restored daemon's snapshot differs");
}

void Cluster::make_twin(LinkId speaking) {
  const std::string snapshot = daemon_->coordinator().snapshot(daemon_now());
  twin_ = std::make_unique<rendezvous::Coordinator>();
  twin_->load(rendezvous::decode_journal(snapshot));
  check(twin_->snapshot(daemon_now()) == snapshot, "a snapshot of a snapshot differs");
  std::map<std::uint64_t, LinkId> hellos;
  for (const auto& [id, link] : links_) {
    if ((link.daemon_side || id == speaking) && !link.hello.empty())
      hellos[link.hello_sequence] = id;
  }
  for (const auto& [sequence, id] : hellos) {
    (void)twin_->on_message(id, links_.at(id).hello, daemon_now());
  }
  // A hello brings nothing new, unless its node has reported on the same link that it is about to
  // go.
  if (!twin_->take_records().empty()) twin_.reset();
}

void Cluster::daemon_does(Gate::Work work) {
  // Nodes that joined while the disk was full may turn out to have come after the end: another run.
  if (work.records.find("\"begin\":true") != std::string::npos) {
    rounds_.clear();
    final_.reset();
    failed_in_.clear();
  }
  if (!work.records.empty() && std::exchange(die_on_record_, false)) {
    if (!disk_full_) disk_ += work.records.substr(0, random_() % (work.records.size() + 1));
    return kill_daemon(false);
  }
  daemon_->check_invariants();
  for (const auto& news : daemon_->take_news()) trace("news: " + news.text + " " + news.node);
  for (rendezvous::LinkAction& action : work.actions) daemon_sends(action);
  if (!work.records.empty()) backlog_.push_back(std::move(work.records));
  write_backlog();
  if (!daemon_) return;
  if (backlog_.empty() && chance(3)) compact();
  arm_daemon_tick();
}

void Cluster::write_backlog() {
  while (daemon_ && !disk_full_ && !backlog_.empty()) {
    disk_ += backlog_.front();
    backlog_.pop_front();
    daemon_does(daemon_->on_durable(daemon_now()));
  }
  // What is not on the disk may never have happened.
  if (!run() || !backlog_.empty()) return;
  run_ended_ = run_ended_ || run()->state() == rendezvous::Run::State::kEnded;
  check_verdict();
}

// A failure may be excused while the run closes; any other verdict is final, and so is an end.
void Cluster::check_verdict() {
  const auto& verdict = run()->verdict();
  if (final_) {
    check(verdict && verdict->kind == *final_,
          "the run has come back to life: " + run()->describe());
  }
  using Kind = rendezvous::Verdict::Kind;
  if (!verdict) return;
  const bool ended = run()->state() == rendezvous::Run::State::kEnded;
  if (ended || verdict->kind != Kind::kWorkerFailed) final_ = verdict->kind;
  // Of a failure its first cause gives the exit code, and never one that was stopped by us.
  static const std::set<int> kFailures = {7, 97, 128 + SIGSEGV, 128 + SIGUSR1};
  check(!ended || verdict->kind != Kind::kWorkerFailed || kFailures.contains(verdict->exit_code),
        "the verdict names one that did not fail: " + verdict->text);
  if (verdict->kind == Kind::kSuccess) check_one_beginning();
  check(verdict->kind != Kind::kSuccess || !failed_in_.contains(run()->round()),
        "a worker of round " + std::to_string(run()->round()) + " failed, and was forgotten");
}

void Cluster::compact() {
  if (disk_full_) return;
  disk_ = rendezvous::journal_header() + daemon_->coordinator().snapshot(daemon_now());
}

void Cluster::daemon_sends(rendezvous::LinkAction& action) {
  if (options_.relays && ends_hear(action)) return;
  sent_ += text_of(action);
  if (auto* send = std::get_if<rendezvous::Send>(&action)) {
    const auto it = links_.find(send->link);
    if (it == links_.end() || !it->second.daemon_side) return;
    put_down(send->link, std::move(send->body));
    return;
  }
  const LinkId id = std::get<rendezvous::Hangup>(action).link;
  const auto it = links_.find(id);
  if (it == links_.end()) return;
  it->second.daemon_side = false;
  put_down(id, std::nullopt);
}

void Cluster::arm_daemon_tick() {
  const auto due = daemon_->deadline();
  if (!due) return;
  const auto now = daemon_now();
  const auto delay = std::chrono::duration_cast<Milliseconds>(std::max(*due, now) - now) + 1ms;
  after(delay, [this, life = daemon_life_, due = *due] {
    if (!daemon_ || daemon_life_ != life || daemon_->deadline() != due) return;
    // A daemon that stood still reads what has come meanwhile before it looks at its clock.
    if (!daemon_stands() && now_ >= daemon_woke_ + 100ms) return daemon_polls();
    const auto left = std::max(daemon_stands_until_, daemon_woke_) + 101ms - now_;
    after(std::chrono::duration_cast<Milliseconds>(left), [this, life] {
      if (daemon_ && daemon_life_ == life && !daemon_stands()) daemon_polls();
    });
  });
}

void Cluster::drain(const std::string& name) {
  if (!daemon_ || daemon_stands()) return;
  trace("an operator drains " + hosts_.at(name).node);
  rendezvous::Command command;
  command.verb = rendezvous::Command::Verb::kDrain;
  command.node = hosts_.at(name).node;
  command.reason = "its fans are loud";
  const std::size_t before = disk_.size();
  daemon_takes(link_next_++, rendezvous::encode(command));
  const bool done = daemon_ && backlog_.empty() && disk_.size() > before &&
                    disk_.find("\"drain\"", before) != std::string::npos;
  if (!done || !run()) return;
  const bool runs = run()->state() == rendezvous::Run::State::kRunning;
  drained_.try_emplace(command.node, run()->round() - (runs ? 0 : 1));
}

void Cluster::cancel() {
  if (!daemon_ || daemon_stands()) return;
  trace("an operator cancels the run");
  rendezvous::Command command;
  command.verb = rendezvous::Command::Verb::kCancel;
  command.run_id = "job";
  command.reason = "it has run for too long";
  daemon_takes(link_next_++, rendezvous::encode(command));
}

void Cluster::resize(int nodes) {
  if (!daemon_ || daemon_stands()) return;
  trace("an operator resizes the run to " + std::to_string(nodes));
  rendezvous::Command command;
  command.verb = rendezvous::Command::Verb::kResize;
  command.run_id = "job";
  command.nodes = nodes;
  daemon_takes(link_next_++, rendezvous::encode(command));
}

void Cluster::shut_down_daemon() {
  if (!daemon_ || daemon_stands() || daemon_->stalled() || disk_full_) return;
  trace("the daemon is told to end");
  twin_.reset();
  daemon_does(daemon_->on_shutdown(SIGTERM, daemon_now()));
}

}  // namespace ddprun::sim
