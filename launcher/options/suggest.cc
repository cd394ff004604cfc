#include "launcher/options/suggest.h"

#include <algorithm>

#include "common/text/words.h"

namespace ddprun::launcher {
namespace {

std::string dashed(std::string_view word) {
  std::string text(word);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  constexpr std::size_t kPrefixLettersMin = 2;
  const std::string wanted = dashed(word);
  const std::size_t far = std::max<std::size_t>(1, wanted.size() / 3) + 1;
  std::string best;
  std::size_t best_distance = far;
  for (const std::string& name : known) {
    const std::string candidate = dashed(name);
    const bool begins = wanted.size() >= kPrefixLettersMin && candidate.starts_with(wanted);
    const std::size_t distance = begins ? 0 : edit_distance(wanted, candidate);
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const std::string name = nearest(word, known);
  return name.empty() ? "" : "; did you mean " + name + "?";
}

}  // namespace ddprun::launcher
