#include "launcher/run/report.h"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "launcher/run/report_table.h"

namespace ddprun::launcher {

void print_report(const std::string& folder) {
  std::vector<RankTime> ranks;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (auto rank = read_summary(text)) ranks.push_back(std::move(*rank));
  }
  std::printf("\n%s", report_table(std::move(ranks)).c_str());
  std::fflush(stdout);
}

}  // namespace ddprun::launcher
