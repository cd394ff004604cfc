#include "common/text/wrapped_text.h"

#include <algorithm>

namespace ddprun {

bool fits_columns(std::string_view lines, std::size_t width) {
  while (width > 0 && !lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    if (text_columns(lines.substr(0, end)) > width) return false;
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return true;
}

std::vector<std::string> wrapped_lines(std::string_view text, std::size_t width) {
  std::vector<std::string> lines;
  std::string line;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    if (!line.empty() && text_columns(line) + 1 + text_columns(word) > width) {
      lines.push_back(std::move(line));
      line.clear();
    }
    line += (line.empty() ? "" : " ") + std::string(word);
    begin = end + 1;
  }
  if (!line.empty()) lines.push_back(std::move(line));
  return lines;
}

}  // namespace ddprun
