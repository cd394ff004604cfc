#include "rendezvous/net/turnstile.h"

#include <utility>

#include "common/assert.h"

namespace ddprun::rendezvous {

bool Turnstile::enter(Id who, TimePoint now) {
  DDPRUN_ASSERT(!inside_.contains(who) && !in_line_.contains(who));
  if (inside_.size() < room_ && in_line_.empty()) return begin(who, now), true;
  line_.push_back(who);
  in_line_.insert(who);
  return false;
}

void Turnstile::begin(Id who, TimePoint now) {
  DDPRUN_ASSERT(inside_.size() < room_);
  DDPRUN_ASSERT(begun_.empty() || begun_.back().first <= now);
  inside_.insert(who);
  begun_.emplace_back(now, who);
}

void Turnstile::leave(Id who) {
  inside_.erase(who);
  in_line_.erase(who);
}

std::vector<Turnstile::Id> Turnstile::admit(TimePoint now) {
  while (!begun_.empty()) {
    const auto [when, who] = begun_.front();
    if (inside_.contains(who) && now < when + patience_) break;
    inside_.erase(who);
    begun_.pop_front();
  }
  std::vector<Id> admitted;
  while (inside_.size() < room_ && !line_.empty()) {
    const Id who = line_.front();
    line_.pop_front();
    if (in_line_.erase(who) == 0) continue;
    begin(who, now);
    admitted.push_back(who);
  }
  return admitted;
}

std::optional<TimePoint> Turnstile::deadline() const {
  if (in_line_.empty() || begun_.empty()) return std::nullopt;
  return begun_.front().first + patience_;
}

std::optional<std::string> Complaints::say(const std::string& about, std::string line,
                                           TimePoint now) {
  if (!window_ends_ || now >= *window_ends_) {
    said_.clear();
    window_ends_ = now + window_;
  }
  if (said_.size() >= lines_ || !said_.insert(about).second) {
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
