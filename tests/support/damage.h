#pragma once
// Text as a broken disk or a careless hand may leave it: for parsers that must survive it.

#include <cstddef>
#include <random>
#include <string>

namespace ddprun::test {

// `whole`, not empty, with one to three bytes changed, missing or neither; never empty.
inline std::string damaged(const std::string& whole, std::mt19937& random) {
  std::string text = whole;
  for (unsigned n = 1 + random() % 3; n > 0; --n) {
    const std::size_t at = random() % text.size();
    if (random() % 2) text[at] = static_cast<char>(random());
    if (random() % 4 == 0) text.erase(at, 1 + random() % 4);
    if (text.empty()) text = whole;
  }
  return text;
}

}  // namespace ddprun::test
