#include "rendezvous/coordinator/relays.h"

#include <algorithm>

#include "common/assert.h"

namespace ddprun::rendezvous {

std::size_t Relays::waiting(const std::string& run_id) const {
  return static_cast<std::size_t>(
      std::count_if(waiting_.begin(), waiting_.end(),
                    [&](const auto& one) { return one.second.run_id == run_id; }));
}

std::size_t Relays::joined(const std::string& run_id) const {
  const auto slot = slots_.find(run_id);
  return slot == slots_.end() ? 0 : static_cast<std::size_t>(slot->second.use_count()) - 1;
}

std::size_t Relays::joined() const {
  std::size_t all = 0;
  for (const auto& [run_id, slot] : slots_) all += joined(run_id);
  return all;
}

Result<std::uint64_t> Relays::begin(LinkId dialer, const std::string& run_id, const NodeId& node,
                                    TimePoint now) {
  if (waiting(run_id) + joined(run_id) >= kStreamsMax) {
    return Failure{Errc::kBadOption, "the daemon relays " + std::to_string(kStreamsMax) +
                                         " streams of this run already"};
  }
  waiting_[next_] = {dialer, run_id, node, now + kPatience};
  return next_++;
}

std::optional<Relays::Waiting> Relays::take(std::uint64_t stream, const std::string& run_id,
                                            const NodeId& node) {
  const auto found = waiting_.find(stream);
  const bool fits =
      found != waiting_.end() && found->second.run_id == run_id && found->second.node == node;
  if (!fits) return std::nullopt;
  Waiting taken = std::move(found->second);
  waiting_.erase(found);
  return taken;
}

std::vector<Relays::Waiting> Relays::expire(TimePoint now) {
  std::vector<Waiting> late;
  while (!waiting_.empty() && waiting_.begin()->second.until <= now) {
    late.push_back(std::move(waiting_.begin()->second));
    waiting_.erase(waiting_.begin());
  }
  std::erase_if(slots_, [](const auto& slot) { return slot.second.use_count() == 1; });
  return late;
}

void Relays::forget(LinkId dialer) {
  std::erase_if(waiting_, [&](const auto& one) { return one.second.dialer == dialer; });
}

bool Relays::contains(LinkId dialer) const {
  return std::any_of(waiting_.begin(), waiting_.end(),
                     [&](const auto& one) { return one.second.dialer == dialer; });
}

std::optional<TimePoint> Relays::deadline() const {
  if (waiting_.empty()) return std::nullopt;
  return waiting_.begin()->second.until;
}

std::shared_ptr<void> Relays::slot_of(const std::string& run_id) {
  auto& slot = slots_[run_id];
  if (!slot) slot = std::make_shared<int>();
  return slot;
}

void Relays::check_invariants() const {
  TimePoint before = TimePoint::min();
  for (const auto& [stream, one] : waiting_) {
    DDPRUN_ASSERT(stream < next_ && one.until >= before);
    before = one.until;
  }
}

}  // namespace ddprun::rendezvous
