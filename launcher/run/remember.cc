#include "launcher/run/remember.h"

#include <algorithm>
#include <cstring>
#include <ctime>

#include "common/exit_status.h"
#include "common/system/user_file.h"
#include "common/text/words.h"

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

}  // namespace ddprun::launcher
