#include "launcher/suggest.h"

#include <algorithm>

namespace ddprun::launcher {
namespace {

std::string dashed(std::string_view word) {
  std::string text(word);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the usual table: a swap looks two rows back.
  std::vector<std::size_t> before, previous(b.size() + 1), current(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) previous[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    current[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t change = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, change});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) current[j] = std::min(current[j], before[j - 2] + 1);
    }
    before = previous;
    previous = current;
  }
  return previous[b.size()];
}

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
