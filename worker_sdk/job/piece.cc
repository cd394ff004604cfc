#include "worker_sdk/job/piece.h"

namespace ddprun::elastic {

std::string piece_of(std::int64_t step, int shard) {
  return "step " + std::to_string(step) + ", shard " + std::to_string(shard);
}

bool has_piece(std::string_view pieces, std::string_view piece) {
  constexpr std::string_view kBetween = "; ";
  while (!pieces.empty()) {
    const std::size_t end = pieces.find(kBetween);
    if (pieces.substr(0, end) == piece) return true;
    pieces.remove_prefix(end == std::string_view::npos ? pieces.size() : end + kBetween.size());
  }
  return false;
}

std::string text_of(const std::vector<Sample>& samples) {
  constexpr std::size_t kLongest = 400;  // The page has room for 511 characters of a piece.
  std::string text;
  for (std::size_t i = 0; i < samples.size(); ++i) {
    if (text.size() > kLongest) {
      return text + " and " + std::to_string(samples.size() - i) + " more";
    }
    text += (i > 0 ? ", " : samples.size() > 1 ? "samples " : "sample ");
    text += std::to_string(samples[i].index);
    if (samples[i].set > 0) text += " of set " + std::to_string(samples[i].set);
  }
  return text;
}

}  // namespace ddprun::elastic
