#include "launcher/run/report.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <filesystem>
#include <utility>

#include "common/system/log.h"
#include "common/system/standard_output.h"
#include "common/system/user_file.h"
#include "launcher/run/ledger_text.h"
#include "launcher/run/report_table.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kBytesMax = std::size_t{512} << 20;

// Workers may write into that folder, too.
std::string contents_of(const std::string& path) {
  return read_regular_end(path, kBytesMax).value_or("");
}

std::string ledger_of(const std::string& folder, std::size_t width) {
  const std::string text = contents_of(folder + "/" + kLedgerFile);
  const auto parts = parse_time_parts(text.substr(text.find(' ') + 1));
  const auto wall = parse_time_parts(text.substr(0, text.find(' ')));
  if (!parts || !wall) return "";
  return ledger_text({.wall = wall->times[0], .parts = *parts}, width);
}

// Of the terminal at standard output; 0: it is none, or does not know.
std::size_t output_columns() {
  winsize size{};
  if (::isatty(STDOUT_FILENO) == 0 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

}  // namespace

void print_report(const std::string& folder) {
  std::vector<RankTime> ranks;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    if (entry.path().extension() != ".json") continue;
    if (auto rank = read_summary(contents_of(entry.path()))) ranks.push_back(std::move(*rank));
  }
  const std::size_t width = output_columns();
  write_output("\n" + report_table(std::move(ranks), width) + ledger_of(folder, width));
  // The exit code is the workers'.
  if (const auto written = output_written(); !written) {
    log::warning("the report is lost: " + to_string(written.error()));
  }
}

Result<bool> write_report_page(const std::string& folder, const std::string& path,
                               const PageFacts& facts) {
  const std::string account = contents_of(folder + "/" + kAccountFile);
  if (account.empty()) return false;
  const auto page = report_page(account, facts);
  if (!page) return Failure{Errc::kBadMessage, "the run's account cannot be read"};
  const auto written = write_user_file(path, *page);
  if (!written) return written.error();
  return true;
}

}  // namespace ddprun::launcher
