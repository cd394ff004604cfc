#pragma once
// Bytes as the protocol's documents write them.

#include <cctype>
#include <sstream>
#include <stdexcept>
#include <string>

namespace ddprun::test {

// bytes("04 05 00*7 \"init/\" 01 00*7 | ff"): hexadecimal bytes, N times with *N, text in quotes;
// bars are for the eye.
inline std::string bytes(const std::string& notation) {
  std::string out;
  std::istringstream words(notation);
  for (std::string word; words >> word;) {
    if (word == "|") continue;
    if (word.front() == '"') {
      out += word.substr(1, word.size() - 2);
      continue;
    }
    if (word.size() < 2 || !std::isxdigit(static_cast<unsigned char>(word[0]))) {
      throw std::invalid_argument("not bytes: " + word);
    }
    const auto byte = static_cast<char>(std::stoi(word.substr(0, 2), nullptr, 16));
    const std::size_t times = word.size() > 3 && word[2] == '*' ? std::stoul(word.substr(3)) : 1;
    out.append(times, byte);
  }
  return out;
}

// The same the other way, for messages of failed checks.
inline std::string hex(const std::string& raw) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  for (const char c : raw) {
    if (!out.empty()) out += ' ';
    out += kDigits[static_cast<unsigned char>(c) >> 4];
    out += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return out;
}

}  // namespace ddprun::test
