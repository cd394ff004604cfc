#include "worker_sdk/join/survivors.h"

#include <charconv>
#include <cstdint>

namespace ddprun::worker_sdk {
namespace {

// Numbers with a space behind each.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end == text.data() + text.size() || *end != ' ') return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()) + 1);
  return number;
}

}  // namespace

Survey::Survey(int rank, int size, const std::vector<int>& lost) : size_(size) { hear(rank, lost); }

void Survey::hear(int rank, const std::vector<int>& lost) {
  heard_.insert(rank);
  lost_.insert(lost.begin(), lost.end());
}

std::vector<int> Survey::awaited() const {
  std::vector<int> ranks;
  for (int r = 0; r < size_; ++r) {
    if (!heard_.contains(r) && !lost_.contains(r)) ranks.push_back(r);
  }
  return ranks;
}

std::vector<int> Survey::members() const {
  std::vector<int> ranks;
  for (const int r : heard_) {
    if (!lost_.contains(r)) ranks.push_back(r);
  }
  return ranks;
}

std::string encode_ranks(const std::vector<int>& ranks) {
  std::string text;
  for (const int r : ranks) text += std::to_string(r) + " ";
  return text;
}

std::string encode(const AgreedSurvivors& settlement) {
  return std::to_string(settlement.limit.count()) + " " + encode_ranks(settlement.members);
}

std::optional<std::vector<int>> decode_ranks(std::string_view text, int size) {
  std::vector<int> ranks;
  while (!text.empty()) {
    const auto rank = take_number(text);
    if (!rank || *rank < 0 || *rank >= size) return std::nullopt;
    if (!ranks.empty() && *rank <= ranks.back()) return std::nullopt;
    ranks.push_back(static_cast<int>(*rank));
  }
  return ranks;
}

std::optional<AgreedSurvivors> decode_agreed(std::string_view text, int size) {
  const auto limit = take_number(text);
  if (!limit || *limit < 0) return std::nullopt;
  auto members = decode_ranks(text, size);
  if (!members) return std::nullopt;
  return AgreedSurvivors{std::chrono::milliseconds(*limit), std::move(*members)};
}

}  // namespace ddprun::worker_sdk
