#include "launcher/replay/replay.h"

#include <signal.h>

#include "common/exit_status.h"
#include "common/system/log.h"
#include "common/system/standard_output.h"
#include "common/text/display.h"
#include "common/text/figures.h"
#include "launcher/replay/bisect.h"
#include "launcher/replay/program.h"
#include "launcher/run/launch.h"

namespace ddprun::launcher {

std::string bundle_text(const Bundle& bundle) {
  std::string text;
  const auto row = [&](const char* name, const std::string& value) {
    std::string line = name;
    line.resize(13, ' ');
    if (!value.empty()) text += line + plain_line(value) + "\n";
  };
  std::string command;
  for (const std::string& word : bundle.command) command += (command.empty() ? "" : " ") + word;
  row("run", bundle.run_id);
  row("who", bundle.who + ", of " + number_of(bundle.world_size, "rank"));
  row("work", bundle.work);
  row("why", bundle.why);
  row("hash", bundle.hash);
  row("command", command);
  row("folder", bundle.folder);
  row("ddprun", bundle.release + ", on " + bundle.system);
  for (const std::string& entry : bundle.environment) row("variable", entry);
  for (const Bundle::Item& item : bundle.items) {
    row("kept", item.name + ", " + std::to_string(item.bytes) + " bytes");
  }
  return text;
}

int run_replay(int argc, const char* const* argv) {
  const auto outcome = parse_replay(argc, argv);
  if (!outcome) return fail(outcome.error());
  if (const auto* print = std::get_if<PrintAndExit>(&*outcome)) {
    write_output(print->text);
    return kExitOk;
  }
  const auto& options = std::get<ReplayOptions>(*outcome);
  if (options.bisect) return run_bisect(options);
  const auto read = read_bundle(options.bundle);
  if (!read) return fail(read.error());
  const Bundle& bundle = read->bundle;
  if (options.show) {
    write_output(bundle_text(bundle));
    return kExitOk;
  }
  enter_folder(options, bundle);
  const auto command = command_of(options, bundle);
  if (!command) return fail(command.error());
  set_environment(options, *read);
  const auto status = run_here(*command);
  if (!status) return fail(status.error());
  const WorkerDeath death = death_of(*status);
  // What the job has printed: its verdict, or an exception that nothing has caught.
  const bool is_printed = death.signal == 0 ? death.exit_code <= 1 : death.signal == SIGABRT;
  const bool is_crash = bundle.cause == Bundle::Cause::kCrash;
  if (is_crash ? death.signal != 0 || !is_printed : death.signal != 0 && !is_printed) {
    Replayed replayed{.work = bundle.work, .found = how_it_ended(death), .crashed = true};
    if (options.shard) replayed.work = "shard " + std::to_string(*options.shard);
    log::info(compare(bundle, replayed).text);
  }
  return exit_status(death);
}

}  // namespace ddprun::launcher
