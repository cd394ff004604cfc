#include "tests/support/scenario.h"

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>

namespace ddprun::test {
namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

bool is_output(const std::string& line) {
  return !line.empty() && line[0] != '#' && line[0] != '>';
}

}  // namespace

std::string run_scenario(const std::string& file, const Interpreter& interpret) {
  std::ifstream in(file);
  if (!in) return file + ": cannot be read\n";
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);

  std::string differences;
  std::string rewritten;
  for (std::size_t i = 0; i < lines.size(); ++i) {
    rewritten += lines[i] + "\n";
    if (lines[i].empty() || lines[i][0] != '>') continue;
    std::string expected, actual;
    while (i + 1 < lines.size() && is_output(lines[i + 1])) expected += lines[++i] + "\n";
    const std::string command = rewritten.substr(rewritten.rfind('>') + 1);
    for (const std::string& line : interpret(words_of(command))) actual += line + "\n";
    rewritten += actual;
    if (actual != expected) {
      differences += file + ":\n>" + command + "expected:\n" + expected + "actual:\n" + actual;
    }
  }
  if (std::getenv("DDPRUN_REWRITE") == nullptr) return differences;
  std::ofstream(file) << rewritten;
  return "";
}

}  // namespace ddprun::test
