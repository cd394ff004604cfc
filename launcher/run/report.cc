#include "launcher/run/report.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <sstream>
#include <utility>

#include "common/exit_status.h"
#include "common/system/folder.h"
#include "common/system/log.h"
#include "common/system/standard_output.h"
#include "common/system/user_file.h"
#include "common/text/words.h"
#include "launcher/run/report_table.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kCommandBytesMax = 8192;
constexpr std::size_t kEndingBytesMax = std::size_t{512} << 20;

}  // namespace

std::string command_text(const Options& options) {
  std::string text = "ddprun";
  for (const GivenOption& option : options.given) {
    text += " " + option.flag;
    if (option.value) text += " " + shell_quote(*option.value);
  }
  text += " " + shell_quote(options.program);
  for (const std::string& argument : options.program_arguments) text += " " + shell_quote(argument);
  return text.substr(0, kCommandBytesMax);
}

KeptRun remember_start(const NodeContext& context) {
  if (context.watch_folder.empty()) return {};
  RunRecord record{.run_id = context.run_id,
                   .command = command_text(context.options),
                   .host = context.host_name,
                   .started = std::time(nullptr),
                   .max_restarts = context.options.max_restarts,
                   .launcher = own_life(),
                   .folder = context.watch_folder};
  return KeptRun::begin(std::move(record));
}

void remember_signal(KeptRun& kept, const Options& options, int signal) {
  const std::vector<int> ending = handled_signals(options);
  if (std::find(ending.begin(), ending.end(), signal) == ending.end()) return;
  const char* name = ::sigabbrev_np(signal);
  kept.stopping(plain_verdict("interrupted", kept.record().run_id, exit_code_of_signal(signal),
                              "interrupted by SIG" + std::string(name ? name : "?")));
}

void remember_killed(KeptRun& kept, const AgentKilled& killed, const char* kind) {
  RunRecord& record = kept.record();
  record.verdict = plain_verdict(kind, record.run_id, killed.exit_code, killed.text);
}

void collect_endings(KeptRun& kept, const NodeContext& context) {
  if (context.watch_folder.empty()) return;
  for (int index = 0; index < context.plan.local_nodes; ++index) {
    const auto text = read_regular_end(ending_file(context, index), kEndingBytesMax);
    if (text) (void)add_ending(kept.record(), *text);  // An agent that was killed has left none.
  }
}

void remember_end(KeptRun& kept, const NodeContext& context, int exit_code) {
  if (context.watch_folder.empty()) return;
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - context.job.began;
  kept.record().exit_code = exit_code;
  kept.end(took.count());
}

namespace {

constexpr std::size_t kBytesMax = std::size_t{512} << 20;

// Workers may write into that folder, too.
std::string contents_of(const std::string& path) {
  return read_regular_end(path, kBytesMax).value_or("");
}

std::string ledger_of(const std::string& folder, std::size_t width) {
  std::istringstream text(contents_of(folder + "/" + kLedgerFile));
  std::string wall_text, parts_text, starts_text, shards_text;
  text >> wall_text >> parts_text >> starts_text >> shards_text;
  const auto parts = parse_time_parts(parts_text), wall = parse_time_parts(wall_text);
  const auto starts = parse_start_totals(starts_text);
  const auto shards = parse_shard_totals(shards_text);
  if (!parts || !wall || !starts || !shards) return "";
  return ledger_text(
      {.wall = wall->times[0], .parts = *parts, .starts = *starts, .shards = *shards}, width);
}

// The width of the terminal at standard output; 0: not a terminal, or unknown.
std::size_t output_columns() {
  winsize size{};
  if (::isatty(STDOUT_FILENO) == 0 || ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

}  // namespace

void print_report(const std::string& folder) {
  std::vector<RankTime> ranks;
  for (const std::string& name : names_in(folder).names) {
    if (!name.ends_with(".json")) continue;
    if (auto rank = read_summary(contents_of(folder + "/" + name)))
      ranks.push_back(std::move(*rank));
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
