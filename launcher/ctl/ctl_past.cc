#include "launcher/ctl/ctl_past.h"

#include <ctime>

#include "common/system/standard_output.h"
#include "common/system/user_file.h"
#include "common/text/screen.h"
#include "launcher/watch/history_text.h"
#include "launcher/watch/logs.h"
#include "launcher/watch/terminal.h"

namespace ddprun::launcher {
namespace {

LocalTime local_time() {
  const std::time_t now = std::time(nullptr);
  std::tm fields{};
  ::localtime_r(&now, &fields);
  return {.now = now, .ahead = fields.tm_gmtoff};
}

std::string shown(const CtlOptions& options, const std::vector<PastRun>& runs, KeptBy keeper) {
  if (options.json) return history_json(runs);
  const ScreenStyle style = output_style();
  if (options.run_id.empty()) return history_text(runs, local_time(), style, keeper);
  return past_run_text(runs.at(0), local_time(), style, keeper);
}

}  // namespace

Result<void> show_own_history(const CtlOptions& options) {
  std::vector<PastRun> runs = past_runs();
  if (!options.run_id.empty()) {
    auto run = named_run(options.run_id);
    if (!run) return run.error();
    runs = {std::move(*run)};
  }
  write_output(shown(options, runs, KeptBy::kMachine));
  return {};
}

Result<std::string> daemon_history_shown(const CtlOptions& options, const std::string& answer) {
  const auto runs = decode_history(answer);
  if (!runs) return Failure{Errc::kBadMessage, "the daemon's history cannot be read"};
  if (!options.run_id.empty() && runs->empty()) {
    return Failure{Errc::kNotFound,
                   "this daemon has no record of an ended run '" + options.run_id + "'"};
  }
  return shown(options, *runs, KeptBy::kDaemon);
}

Result<std::string> report_shown(const CtlOptions& options, const std::string& account,
                                 const PageFacts& facts) {
  if (options.html_file.empty()) return account + "\n";
  const auto page = report_page(account, facts);
  if (!page) return Failure{Errc::kBadMessage, "the run's account cannot be read"};
  const auto ready = check_user_file(options.html_file);
  if (!ready) {
    return Failure{ready.error().code, "--html " + options.html_file + " " + ready.error().context};
  }
  const auto written = write_user_file(options.html_file, *page);
  if (!written) return written.error();
  return "the report is in " + options.html_file + "\n";
}

Result<void> show_own_report(const CtlOptions& options) {
  const auto run = named_run(options.run_id);
  if (!run) return run.error();
  const RunRecord& record = run->record;
  if (record.account.empty()) {
    const std::string why =
        run->state == RunState::kRunning
            ? " is in progress: its daemon has its report (-e HOST:PORT)"
            : " left no account here: runs of more than 64 ranks that took less than 10 s leave "
              "none, and of several launchers only that of group rank 0 has it";
    return Failure{Errc::kNotFound, "run '" + cell_text(record.run_id) + "'" + why};
  }
  const auto text =
      report_shown(options, record.account,
                   {.command = record.command, .started_utc = utc_text(record.started)});
  if (!text) return text.error();
  write_output(*text);
  return {};
}

}  // namespace ddprun::launcher
