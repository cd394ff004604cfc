#include "agent/placement/gpu_list.h"

#include <algorithm>
#include <optional>
#include <set>

#include "common/text/number.h"

namespace ddprun::agent {
namespace {

std::string_view trim(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::optional<int> parse_number(std::string_view text) {
  const auto number = as_number<int>(text);
  return number >= 0 ? number : std::nullopt;
}

}  // namespace

std::vector<std::string> split_gpu_list(std::string_view value) {
  std::vector<std::string> gpus;
  for (std::size_t begin = 0; begin <= value.size();) {
    const std::size_t comma = std::min(value.find(',', begin), value.size());
    const std::string_view entry = trim(value.substr(begin, comma - begin));
    const bool named = entry.starts_with("GPU-") || entry.starts_with("MIG-");
    if (!named && !parse_number(entry)) break;
    gpus.emplace_back(entry);
    begin = comma + 1;
  }
  return gpus;
}

int visible_gpus(std::string_view value, int present) {
  std::set<std::string> seen;
  for (const std::string& gpu : split_gpu_list(value)) {
    const std::optional<int> number = parse_number(gpu);
    if (number && *number >= present) break;
    if (!seen.insert(number ? std::to_string(*number) : gpu).second) return 0;
  }
  return static_cast<int>(seen.size());
}

}  // namespace ddprun::agent
