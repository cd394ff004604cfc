#include "launcher/report.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "launcher/report_table.h"

namespace ddprun::launcher {

Result<Report> Report::open() {
  std::error_code ignored;
  std::string folder = std::filesystem::temp_directory_path(ignored) / "ddprun_report_XXXXXX";
  if (!::mkdtemp(folder.data())) {
    return Failure{{errno, boost::system::system_category()}, "making a folder for --report"};
  }
  ::setenv("DDPRUN_REPORT_DIR", folder.c_str(), 1);
  return Report(std::move(folder));
}

Report::Report(Report&& other) noexcept : folder_(std::exchange(other.folder_, {})) {}

Report::~Report() {
  if (folder_.empty()) return;
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

void Report::print() const {
  std::vector<RankTime> ranks;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder_, ignored)) {
    if (entry.path().extension() != ".json") continue;
    std::ifstream file(entry.path());
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    if (auto rank = read_summary(text)) ranks.push_back(std::move(*rank));
  }
  std::printf("\n%s", report_table(std::move(ranks)).c_str());
  std::fflush(stdout);
}

}  // namespace ddprun::launcher
