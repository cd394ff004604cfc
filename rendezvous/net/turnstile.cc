#include "rendezvous/net/turnstile.h"

#include <utility>

#include "common/assert.h"

namespace ddprun::rendezvous {

bool Turnstile::enter(Id visitor, TimePoint now) {
  DDPRUN_ASSERT(!inside_.contains(visitor) && !in_line_.contains(visitor));
  if (inside_.size() < room_ && in_line_.empty()) return begin(visitor, now), true;
  line_.push_back(visitor);
  in_line_.insert(visitor);
  return false;
}

void Turnstile::begin(Id visitor, TimePoint now) {
  DDPRUN_ASSERT(inside_.size() < room_);
  DDPRUN_ASSERT(begun_.empty() || begun_.back().first <= now);
  inside_.insert(visitor);
  begun_.emplace_back(now, visitor);
}

void Turnstile::leave(Id visitor) {
  inside_.erase(visitor);
  in_line_.erase(visitor);
}

std::vector<Turnstile::Id> Turnstile::admit(TimePoint now) {
  while (!begun_.empty()) {
    const auto [when, visitor] = begun_.front();
    if (inside_.contains(visitor) && now < when + patience_) break;
    inside_.erase(visitor);
    begun_.pop_front();
  }
  std::vector<Id> admitted;
  while (inside_.size() < room_ && !line_.empty()) {
    const Id visitor = line_.front();
    line_.pop_front();
    if (in_line_.erase(visitor) == 0) continue;
    begin(visitor, now);
    admitted.push_back(visitor);
  }
  return admitted;
}

std::optional<TimePoint> Turnstile::deadline() const {
  if (in_line_.empty() || begun_.empty()) return std::nullopt;
  return begun_.front().first + patience_;
}

std::optional<std::string> Complaints::filter(const std::string& about, std::string line,
                                              TimePoint now) {
  if (!window_ends_ || now >= *window_ends_) {
    logged_.clear();
    window_ends_ = now + window_;
  }
  if (logged_.size() >= lines_ || !logged_.insert(about).second) {
    ++left_out_;
    return std::nullopt;
  }
  return remark(std::move(line));
}

std::string Complaints::remark(std::string line) {
  if (const auto left_out = std::exchange(left_out_, 0)) {
    line += " (" + std::to_string(left_out) + " such lines were omitted before this one)";
  }
  return line;
}

}  // namespace ddprun::rendezvous
