#pragma once
// What `ddprun slurm` submits: which script of deploy/slurm, filled in, with which options of
// sbatch, and what sbatch's answers mean. Pure; slurm.cc carries it out.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/options/slurm_options.h"

namespace ddprun::launcher {

// The scripts of deploy/slurm, which the program contains.
enum class SlurmScript {
  kOneNode,  // one-node.sbatch: a part of a node.
  kNodes,    // ddprun.sbatch: whole nodes.
  kSpot,     // spot.sbatch: whole nodes that Slurm may take away; the job is queued again.
  kElastic,  // elastic.sbatch: a run of several jobs.
  kDaemon,   // daemon.sbatch: the daemon of such a run, as a job of its own.
};

std::string_view text_of(SlurmScript script);

struct Submission {
  std::vector<std::string> sbatch;  // The command, which reads the script from its standard input.
  std::string script;
};

SlurmScript script_for(const SlurmOptions& options);

// The job of --daemon-on, and the script that runs outside Slurm with --daemon-on this-host, for
// the run of that name.
Submission daemon_job(const SlurmOptions& options, const std::string& program);
std::string daemon_script(const std::string& program, const std::string& name);

// The job that starts a run; `daemon` is the number of the job of --daemon-on,
// or the name of the run. `program` is the
// path of ddprun, used unless the variable DDPRUN names another.
Submission first_job(const SlurmOptions& options, const std::string& program,
                     const std::string& daemon = "");

// A job of one node that joins the run of the job, or of the name, `first`, once that has started.
Submission joining_job(const SlurmOptions& options, const std::string& program,
                       const std::string& first);
int joining_jobs(const SlurmOptions& options);

// The number in what sbatch --parsable prints ("4711", "4711;cluster"); std::nullopt: none, as with
// --test-only.
std::optional<std::string> job_number(std::string_view output);

// What sbatch printed on standard error as it refused a job, as a sentence without its prefixes,
// with the remedy if it is known.
std::string plain_refusal(std::string_view errors);

// For the user, once all jobs are submitted: how to add nodes, take them away, and end the run.
// `run` is the number that --join takes, `jobs` are all that were submitted.
std::string hints(const SlurmOptions& options, const std::string& run,
                  const std::vector<std::string>& jobs);

// --dry-run: the script, with the commands as comments. `name`: see daemon_script().
std::string dry_run_text(const SlurmOptions& options, const std::string& program,
                         const std::string& name = "");

}  // namespace ddprun::launcher
