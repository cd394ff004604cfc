#pragma once
// Reads the lines of tests/golden/training.txt: "kind words : numbers | numbers | ...".

#include <fstream>
#include <sstream>
#include <string>
#include <vector>

namespace ddprun::test {

struct GoldenLine {
  std::string text;
  std::vector<std::string> words;  // Before the colon, without the kind.
  std::vector<std::string> parts;  // After it, between the bars.

  template <class T = double>
  std::vector<T> numbers(std::size_t part) const {
    std::istringstream in(parts.at(part));
    std::vector<T> result;
    // stod() reads "inf" and "nan", which streams do not.
    for (std::string word; in >> word;) result.push_back(static_cast<T>(std::stod(word)));
    return result;
  }
};

inline std::vector<GoldenLine> golden_lines(const std::string& path, const std::string& kind) {
  std::ifstream file(path);
  std::vector<GoldenLine> lines;
  for (std::string line; std::getline(file, line);) {
    if (line.rfind(kind + " ", 0) != 0) continue;
    const auto colon = line.find(" :");
    GoldenLine golden{line, {}, {}};
    std::istringstream words(line.substr(kind.size(), colon - kind.size()));
    for (std::string word; words >> word;) golden.words.push_back(word);
    std::istringstream parts(line.substr(colon + 2));
    for (std::string part; std::getline(parts, part, '|');) golden.parts.push_back(part);
    lines.push_back(std::move(golden));
  }
  return lines;
}

inline std::vector<GoldenLine> training_lines(const std::string& kind) {
  return golden_lines("tests/golden/training.txt", kind);
}

}  // namespace ddprun::test
