#include "agent/lines/tail_ring.h"

#include <algorithm>

#include "common/assert.h"

namespace ddprun::agent {

void TailRing::add(std::string_view line) {
  if (line.size() >= kTailBytes) line.remove_prefix(line.size() - (kTailBytes - 1));
  append(line);
  append("\n");
}

void TailRing::append(std::string_view bytes) {
  DDPRUN_ASSERT(ring_.size() <= kTailBytes && next_ < kTailBytes);
  end_ += bytes.size();
  if (ring_.size() < kTailBytes) {
    if (ring_.empty()) ring_.reserve(kTailBytes);
    const std::size_t fits = std::min(bytes.size(), kTailBytes - ring_.size());
    ring_.append(bytes.substr(0, fits));
    bytes.remove_prefix(fits);
  }
  while (!bytes.empty()) {
    const std::size_t part = std::min(bytes.size(), kTailBytes - next_);
    bytes.copy(ring_.data() + next_, part);
    next_ = (next_ + part) % kTailBytes;
    bytes.remove_prefix(part);
  }
}

std::vector<std::string> TailRing::lines() const { return last_lines_of(text()); }

std::string TailRing::text() const {
  const bool full = ring_.size() == kTailBytes;
  return full ? ring_.substr(next_) + ring_.substr(0, next_) : ring_;
}

std::vector<std::string> last_lines_of(std::string_view text) {
  std::vector<std::string> lines;
  if (text.ends_with('\n')) text.remove_suffix(1);
  if (text.empty()) return lines;
  while (lines.size() < kTailLines) {
    const std::size_t newline = text.rfind('\n');
    const bool first = newline == std::string_view::npos;
    lines.emplace_back(first ? text : text.substr(newline + 1));
    if (first) break;
    text = text.substr(0, newline);
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

}  // namespace ddprun::agent
