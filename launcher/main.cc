// ddprun: the user's command. Reads the command line and starts what it requests: a node of a run
// here (run/launch.h), one on each of --hosts (hosts/hosts_run.h) or of the hosts that a script
// lists (hosts/discovery_run.h), or, started by one of those, a node by its orders. `ddprun doctor`
// starts nothing, and checks (doctor/doctor.h); `ddprun slurm` submits a run to Slurm
// (slurm/slurm.h); `ddprun replay` computes a step again that has failed (replay/replay.h). A run
// may leave a ddprun behind that only holds memory for the next one (guard/holder.h).

#include <cstdio>
#include <exception>

#include "common/exit_status.h"
#include "common/system/log.h"
#include "common/system/secrets.h"
#include "common/system/standard_output.h"
#include "common/system/start_signals.h"
#include "launcher/doctor/doctor.h"
#include "launcher/guard/holder.h"
#include "launcher/hosts/control_stdin.h"
#include "launcher/hosts/discovery_run.h"
#include "launcher/hosts/hosts_run.h"
#include "launcher/options/allocation.h"
#include "launcher/options/config_file.h"
#include "launcher/options/options.h"
#include "launcher/options/slurm_options.h"
#include "launcher/plan/gather_facts.h"
#include "launcher/replay/replay.h"
#include "launcher/run/launch.h"
#include "launcher/slurm/slurm.h"

namespace ddprun::launcher {
namespace {

int run(int argc, const char* const* argv, ControlStdin* control) {
  const Environment environment = take_environment();
  if (argc > 1 && argv[1] == kDoctorCommand) {
    return run_doctor(argc - 1, argv + 1, environment, control);
  }
  if (argc > 1 && argv[1] == kReplayCommand) return run_replay(argc - 1, argv + 1);
  const auto config = read_config_file(config_path(environment), environment);
  if (!config) return fail(config.error());
  if (argc > 1 && argv[1] == kSlurmCommand) {
    return run_slurm(argc - 1, argv + 1, with_config(environment, *config));
  }
  auto outcome = parse(argc, argv, with_config(environment, *config));
  if (!outcome) {
    return fail({outcome.error().code, explained(outcome.error().context, *config, environment)});
  }
  if (const auto* print = std::get_if<PrintAndExit>(&*outcome)) {
    write_output(print->text);
    return kExitOk;
  }
  auto& options = std::get<Options>(*outcome);
  start_log("ddprun", options);
  if (control) {
    options.scheduler = "the launching ddprun";
    options.preempt_signals.push_back(kLeaveSignal);
    options.stdin_for = {};  // It is the control pipe.
  }
  start_signals_as(handled_signals(options), options.preempt_signals);
  const auto around = read_surroundings(options, environment);
  if (!around) return fail(around.error());
  if (!around->warning.empty()) log::warning(around->warning);
  if (!control) options.scheduler_step = scheduler_step(environment);
  if (around->allocation) options = completed(std::move(options), *around->allocation);
  if (!options.host_discovery.empty()) {
    const Result<int> status = run_discovery(std::move(options), environment);
    return status ? *status : fail(status.error());
  }
  if (!options.hosts.empty()) {
    const Result<int> status = run_hosts(options, gather_facts(environment), environment);
    return status ? *status : fail(status.error());
  }
  std::optional<GuardedChild> companion;
  if (control) companion = control->watcher();
  const Result<int> status = launch(std::move(options), environment, std::move(companion));
  return status ? *status : fail(status.error());
}

// A node of --hosts: the launching ddprun sends the command line.
int run_controlled() {
  take_variable(kTokenVariable);  // The orders contain the token.
  ControlStdin control;
  const auto orders = ControlStdin::receive(control);
  if (!orders) return fail(orders.error());
  if (!*orders) return kExitRendezvous;
  int status = kExitUsage;
  if (const auto obeyed = ControlStdin::obey(**orders); obeyed) {
    std::vector<const char*> argv;
    for (const std::string& word : (*orders)->argv) argv.push_back(word.c_str());
    status = run(static_cast<int>(argv.size()), argv.data(), &control);
  } else {
    (void)fail(obeyed.error());
  }
  write_output(ended_line((*orders)->nonce, status) + "\n");
  return status;
}

}  // namespace
}  // namespace ddprun::launcher

int main(int argc, char** argv) {
  using namespace ddprun;
  if (argc == 2 && argv[1] == launcher::kHolderFlag) return launcher::run_holder();
  occupy_standard_descriptors();
  start_signals(/*options_follow=*/true);
  log::start("ddprun", log::Level::kInfo);
  try {
    const bool far_end = argc == 2 && argv[1] == launcher::kControlFlag;
    return after_output(far_end ? launcher::run_controlled() : launcher::run(argc, argv, nullptr));
  } catch (const std::exception& bug) {
    std::fprintf(stderr, "ddprun: error: %s\n", bug.what());
    return kExitFailed;
  }
}
