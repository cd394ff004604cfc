#include "rendezvous/net/complaints.h"

#include <utility>

namespace ddprun::rendezvous {

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
