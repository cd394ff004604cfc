#include "rendezvous/coordinator/gate.h"

#include <utility>

#include "common/assert.h"

namespace ddprun::rendezvous {

// Takes what the Coordinator has decided: its records, and its actions behind them.
void Gate::pass(std::vector<LinkAction> actions, TimePoint now, Work& work) {
  DDPRUN_ASSERT(!stalled_);
  std::string records = coordinator_.take_records();
  if (!records.empty() && work.records.empty()) {
    ++appended_;
    unwritten_.push_back(now);
  }
  work.records += records;
  for (LinkAction& action : actions) {
    if (unwritten_.empty()) {
      work.actions.push_back(std::move(action));
    } else {
      waiting_.push_back({appended_, std::move(action)});
    }
  }
}

bool Gate::stalls(TimePoint now) {
  if (!unwritten_.empty() && now - unwritten_.front() >= kPatience) stalled_ = true;
  return stalled_;
}

Gate::Work Gate::replay(const Journal& journal, TimePoint now, const std::string& clock) {
  DDPRUN_ASSERT(appended_ == 0 && !stalled_);
  coordinator_.replay(journal, now, clock);
  Work work;
  pass({}, now, work);
  return work;
}

Gate::Work Gate::on_message(LinkId link, std::string_view body, TimePoint now,
                            std::string_view from) {
  if (stalls(now)) return hold(link, body, from);
  Work work;
  pass(coordinator_.on_message(link, body, now, from), now, work);
  return work;
}

Gate::Work Gate::on_closed(LinkId link, TimePoint now) {
  Work work;
  if (stalls(now)) {
    held_.push_back({.link = link, .body = std::nullopt});
  } else {
    pass(coordinator_.on_closed(link, now), now, work);
  }
  return work;
}

// That we are here is always true; anything more might turn out never to have been decided.
Gate::Work Gate::hold(LinkId link, std::string_view body, std::string_view from) {
  DDPRUN_ASSERT(stalled_);
  const auto message = decode_agent_message(body);
  const bool beats = message && std::holds_alternative<Heartbeat>(*message);
  const bool greets = message && std::holds_alternative<Hello>(*message);
  Work work;
  if (beats || greets)
    work.actions.push_back(Send{link, encode(DaemonMessage(Alive{.keeps = true}))});
  if (beats) return work;
  if (held_bytes_ + body.size() > kHeldBytesMax) {
    work.actions.push_back(Hangup{link, "the journal cannot be written and too much is waiting"});
    return work;  // On its next connection the agent sends all of it again.
  }
  held_bytes_ += body.size();
  held_.push_back({link, std::string(body), std::string(from)});
  return work;
}

Gate::Work Gate::on_tick(TimePoint now) {
  Work work;
  if (!stalls(now)) pass(coordinator_.on_tick(now), now, work);
  return work;
}

// While the gate is stalled no node's time passes anyway.
Gate::Work Gate::on_standstill(Milliseconds how_long, TimePoint now) {
  Work work;
  if (!stalls(now)) pass(coordinator_.on_standstill(how_long, now), now, work);
  return work;
}

std::vector<LinkId> Gate::quiet(TimePoint now) const {
  return stalled_ ? std::vector<LinkId>() : coordinator_.quiet(now);
}

Gate::Work Gate::on_reach(LinkId link, const Reach& reach, TimePoint now) {
  Work work;
  if (!stalls(now)) pass(coordinator_.on_reach(link, reach, now), now, work);
  return work;
}

Gate::Work Gate::on_shutdown(int signal, TimePoint now) {
  DDPRUN_ASSERT(!stalled_);  // The caller ends at once: what cannot be recorded is not decided.
  Work work;
  pass(coordinator_.on_shutdown(signal, now), now, work);
  return work;
}

Gate::Work Gate::on_durable(TimePoint now) {
  DDPRUN_ASSERT(!unwritten_.empty() && durable_ < appended_);
  unwritten_.pop_front();
  ++durable_;
  Work work;
  while (!waiting_.empty() && waiting_.front().after <= durable_) {
    work.actions.push_back(std::move(waiting_.front().action));
    waiting_.pop_front();
  }
  if (stalled_ && unwritten_.empty()) resume(now, work);
  return work;
}

void Gate::resume(TimePoint now, Work& work) {
  DDPRUN_ASSERT(stalled_ && unwritten_.empty() && waiting_.empty());
  stalled_ = false;
  held_bytes_ = 0;
  const std::vector<Held> held = std::exchange(held_, {});
  pass(coordinator_.on_recovered(now), now, work);
  const auto greets = [](const Held& one) {
    const auto message = decode_agent_message(one.body.value_or(""));
    return message && std::holds_alternative<Hello>(*message);
  };
  for (const Held& one : held) {
    if (greets(one)) receive(one, now, work);
  }
  for (const Held& one : held) {
    if (!greets(one)) receive(one, now, work);
  }
}

void Gate::receive(const Held& held, TimePoint now, Work& work) {
  pass(held.body ? coordinator_.on_message(held.link, *held.body, now, held.from)
                 : coordinator_.on_closed(held.link, now, /*unseen=*/true),
       now, work);
}

void Gate::check_invariants() const {
  coordinator_.check_invariants();
  DDPRUN_ASSERT(appended_ == durable_ + unwritten_.size());
  DDPRUN_ASSERT(waiting_.empty() || waiting_.front().after > durable_);
  DDPRUN_ASSERT(waiting_.empty() || waiting_.back().after <= appended_);
  DDPRUN_ASSERT(stalled_ ? !unwritten_.empty() : held_.empty() && held_bytes_ == 0);
}

std::optional<TimePoint> Gate::deadline() const {
  return stalled_ ? std::nullopt : coordinator_.deadline();
}

}  // namespace ddprun::rendezvous
