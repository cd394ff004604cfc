#include "launcher/options/help.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>

#include "common/exit_status.h"
#include "launcher/options/flags.h"
#include "tests/support/command_line.h"

namespace ddprun::launcher {
namespace {

TEST_CASE("Help: fits 100 columns and has one line for each flag", "[help]") {
  std::istringstream help(help_text(Flags::kAll));
  std::vector<std::string> lines;
  for (std::string line; std::getline(help, line);) {
    INFO(line);
    CHECK(line.size() <= 100);
    lines.push_back(line);
  }
  for (const Option& flag : all_options()) {
    const std::string name = "--" + std::string(flag.name);
    const auto is_its_line = [&](const std::string& line) {
      return (line + " ").starts_with("      " + name + " ") || line.find(", " + name + " ") == 4;
    };
    INFO(name);
    CHECK(std::count_if(lines.begin(), lines.end(), is_its_line) == 1);
  }
}

TEST_CASE("Help: the short one is the flags used most, and says where the others are", "[help]") {
  const std::string all = help_text(Flags::kAll), most = help_text(Flags::kUsedMost);
  std::size_t shown = 0;
  std::istringstream lines(most);
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("      --") && !line.starts_with("  -")) continue;
    ++shown;
    INFO(line);
    CHECK(all.find(line + "\n") != std::string::npos);
  }
  CHECK(shown <= 25);
  CHECK(most.find("\nand " + std::to_string(all_options().size() - shown) + " more, ") !=
        std::string::npos);
  CHECK(all.find("ddprun --help all") == std::string::npos);
}

// The rows of docs/environment.md: the code, and its meaning without links and marks of code.
std::map<std::string, std::string> documented_exit_codes() {
  std::ifstream page("docs/environment.md");
  std::map<std::string, std::string> rows;
  bool there = false;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) there = line == "## Exit codes";
    std::smatch row;
    if (!there || !std::regex_match(line, row, std::regex(R"(\| ([^|]*) \| (.*) \|)"))) continue;
    const std::string bare =
        std::regex_replace(row[2].str(), std::regex(R"(\]\([^)]*\)|[`\[])"), "");
    if (row[1] != "code") rows[row[1]] = bare;
  }
  return rows;
}

TEST_CASE("Help: has every exit code, and docs/environment.md explains each", "[help]") {
  auto documented = documented_exit_codes();
  std::string help = help_text(Flags::kUsedMost);
  std::replace(help.begin(), help.end(), '\n', ' ');
  for (const auto& [code, meaning] : kExitMeanings) {
    const std::string number = std::to_string(code);
    INFO(number << ": " << documented[number]);
    CHECK(documented[number].starts_with(meaning));
    CHECK(help.find(" " + number + ": " + meaning + "; ") != std::string::npos);
    documented.erase(number);
  }
  CHECK(help.ends_with(kExitElse + std::string(". ")));
  CHECK(documented.contains("any other"));
  CHECK(documented.contains("128 + n"));
  CHECK(documented.size() == 2);
}

TEST_CASE("Help: every example is a command line that ddprun takes", "[help]") {
  std::istringstream help(help_text(Flags::kUsedMost));
  int examples = 0;
  for (std::string line; std::getline(help, line);) {
    if (!line.starts_with("  ddprun ")) continue;
    ++examples;
    const std::string command = line.substr(9, line.find("   ", 9) - 9);
    INFO(command);
    CHECK(parse_line(command).has_value());
  }
  CHECK(examples == 9);
}

TEST_CASE("Help: names of flags in their three spellings", "[help]") {
  CHECK(underscored("nproc-per-node") == "nproc_per_node");
  CHECK(pet_variable("nproc-per-node") == "PET_NPROC_PER_NODE");
  CHECK(find_option(all_options(), "nnodes")->value == "N|MIN:MAX");
  CHECK(find_option(all_options(), "nope") == nullptr);
}

}  // namespace
}  // namespace ddprun::launcher
