#include "launcher/slurm/submission.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <utility>

#include "common/assert.h"
#include "common/embedded_file.h"
#include "common/text/words.h"

DDPRUN_EMBEDDED_FILE(ddprun_one_node_script, DDPRUN_ONE_NODE_SCRIPT);
DDPRUN_EMBEDDED_FILE(ddprun_nodes_script, DDPRUN_NODES_SCRIPT);
DDPRUN_EMBEDDED_FILE(ddprun_spot_script, DDPRUN_SPOT_SCRIPT);
DDPRUN_EMBEDDED_FILE(ddprun_elastic_script, DDPRUN_ELASTIC_SCRIPT);
DDPRUN_EMBEDDED_FILE(ddprun_daemon_script, DDPRUN_DAEMON_SCRIPT);

namespace ddprun::launcher {

std::string_view text_of(SlurmScript script) {
  switch (script) {
    case SlurmScript::kOneNode: return {ddprun_one_node_script, ddprun_one_node_script_end};
    case SlurmScript::kNodes: return {ddprun_nodes_script, ddprun_nodes_script_end};
    case SlurmScript::kSpot: return {ddprun_spot_script, ddprun_spot_script_end};
    case SlurmScript::kElastic: return {ddprun_elastic_script, ddprun_elastic_script_end};
    case SlurmScript::kDaemon: return {ddprun_daemon_script, ddprun_daemon_script_end};
  }
  DDPRUN_ASSERT(false);
}

namespace {

constexpr std::string_view kFillHere = "\nset -euo pipefail\n";

bool has_option(const SlurmOptions& options, std::string_view name) {
  return std::any_of(options.sbatch.begin(), options.sbatch.end(), [&](const std::string& word) {
    return word == name || word.starts_with(std::string(name) + "=");
  });
}

// The options are in the script as well, so that it can be saved and submitted by itself.
std::string filled_in(SlurmScript script, const std::vector<std::string>& options,
                      const std::string& lines) {
  std::string text(text_of(script));
  const std::size_t at = text.find(kFillHere);
  DDPRUN_ASSERT(at != std::string::npos);
  const std::string filled = "\n# Filled in by ddprun slurm.\n";
  text.insert(at + kFillHere.size(), filled + lines);
  if (!options.empty()) text.insert(at, filled + "#SBATCH " + shell_line(options) + "\n");
  return text;
}

// `words` become the script's arguments; none: it has its own.
std::string lines_of(const std::string& program, const std::vector<std::string>& words) {
  std::string lines = "DDPRUN=${DDPRUN:-" + shell_quote(program) + "}\n";
  if (!words.empty()) lines += "set -- " + shell_line(words) + "\n";
  return lines;
}

// Options on the command line go before those of the script, and before variables such as
// SBATCH_PARTITION.
Submission submission(SlurmScript script, std::vector<std::string> options,
                      const std::string& lines) {
  Submission job{{"sbatch", "--parsable"}, filled_in(script, options, lines)};
  std::move(options.begin(), options.end(), std::back_inserter(job.sbatch));
  return job;
}

// Of sbatch's options those that hold for the daemon's job as well.
std::vector<std::string> options_of_daemon(const SlurmOptions& options) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 4> kShared = {
      {{"--account", "-A"}, {"--time", "-t"}, {"--output", "-o"}, {"--error", "-e"}}};
  std::vector<std::string> shared = {"--partition=" + options.daemon_on};
  for (auto word = options.sbatch.begin(); word != options.sbatch.end(); ++word) {
    for (const auto& [name, letter] : kShared) {
      const bool has_value = word->starts_with(std::string(name) + "=") ||
                             (word->starts_with(letter) && word->size() > letter.size());
      const bool is_name = *word == name || *word == letter;
      if (has_value || is_name) shared.push_back(*word);
      if (is_name && word + 1 != options.sbatch.end()) shared.push_back(*++word);
    }
  }
  return shared;
}

// A job that begins once the job `other` has begun, unless the user has set a time.
void begin_after(const std::string& other, const SlurmOptions& options,
                 std::vector<std::string>& of_sbatch) {
  if (!is_job_number(other)) return;  // A daemon outside Slurm runs already.
  const bool is_given =
      std::any_of(options.sbatch.begin(), options.sbatch.end(), [](const std::string& word) {
        return word.starts_with("-d") || word.starts_with("--dependency");
      });
  if (!is_given) of_sbatch.push_back("--dependency=after:" + other);
}

// ddprun's, of a new run.
std::vector<std::string> words_of_run(const SlurmOptions& options) {
  std::vector<std::string> words;
  if (options.is_elastic()) {
    words = {"--nnodes",
             std::to_string(options.nodes->min) + ":" + std::to_string(options.nodes->max)};
  }
  words.insert(words.end(), options.argv.begin(), options.argv.end());
  return words;
}

std::string nodes_of_first(const SlurmOptions& options) {
  if (options.is_elastic()) return std::to_string(options.nodes->min);
  return options.nodes_text;
}

}  // namespace

SlurmScript script_for(const SlurmOptions& options) {
  if (options.is_elastic()) return SlurmScript::kElastic;
  if (has_option(options, "--requeue")) return SlurmScript::kSpot;
  const bool whole = !options.nodes_text.empty() || has_option(options, "--exclusive");
  return whole ? SlurmScript::kNodes : SlurmScript::kOneNode;
}

Submission daemon_job(const SlurmOptions& options, const std::string& program) {
  return submission(SlurmScript::kDaemon, options_of_daemon(options), lines_of(program, {}));
}

std::string daemon_script(const std::string& program, const std::string& name) {
  return filled_in(SlurmScript::kDaemon, {},
                   lines_of(program, {}) + "run_name=" + shell_quote(name) + "\n");
}

Submission first_job(const SlurmOptions& options, const std::string& program,
                     const std::string& daemon) {
  const SlurmScript script = script_for(options);
  std::string nodes = nodes_of_first(options);
  // The scripts for whole nodes have two by default.
  if (nodes.empty() && script != SlurmScript::kOneNode) nodes = "1";
  std::vector<std::string> of_sbatch = options.sbatch;
  if (!nodes.empty()) of_sbatch.push_back("--nodes=" + nodes);
  std::string lines = lines_of(program, words_of_run(options));
  if (!daemon.empty()) {
    begin_after(daemon, options, of_sbatch);
    lines += "JOIN=" + daemon + "\n";
  }
  return submission(script, std::move(of_sbatch), lines);
}

Submission joining_job(const SlurmOptions& options, const std::string& program,
                       const std::string& first) {
  std::vector<std::string> words;
  if (!options.join.empty()) words = options.argv;  // Else as the first job has kept them.
  std::vector<std::string> of_sbatch = options.sbatch;
  of_sbatch.push_back("--nodes=1");
  begin_after(first, options, of_sbatch);
  return submission(SlurmScript::kElastic, std::move(of_sbatch),
                    lines_of(program, words) + "JOIN=" + first + "\n");
}

int joining_jobs(const SlurmOptions& options) {
  if (!options.join.empty()) return options.nodes ? options.nodes->max : 1;
  return options.is_elastic() ? options.nodes->max - options.nodes->min : 0;
}

std::optional<std::string> job_number(std::string_view output) {
  const std::size_t end = output.find_first_not_of("0123456789");
  const std::string_view number = output.substr(0, end);
  const std::string_view rest = end == std::string_view::npos ? "" : output.substr(end);
  if (number.empty() || number.size() > 10) return std::nullopt;
  if (!rest.empty() && rest.front() != '\n' && rest.front() != ';') return std::nullopt;
  return std::string(number);
}

namespace {

struct Remedy {
  std::string_view phrase;  // Of sbatch.
  std::string_view remedy;
};
constexpr std::array<Remedy, 15> kRemedies = {{
    {"invalid partition", "`sinfo -s` lists the partitions"},
    {"Invalid account or account/partition",
     "`sacctmgr show associations user=$USER` lists your accounts and their partitions"},
    {"Invalid qos", "`sacctmgr show associations user=$USER format=qos` lists yours"},
    {"node configuration is not available",
     "no node of the partition has that many processors, GPUs or that much memory; `sinfo -o '%P "
     "%D "
     "%c %m %G'` shows what they have"},
    {"Invalid generic resource", "no node has such GPUs; `sinfo -o '%P %G'` shows what they have"},
    {"Node count specification invalid", "the partition has fewer nodes; see `sinfo -s`"},
    {"More processors requested than permitted",
     "no node has that many processors; see --cpus-per-task and `sinfo -o '%P %c'`"},
    {"Requested time limit is invalid",
     "the partition's limit is shorter; `sinfo -o '%P %l'` shows it"},
    {"violates accounting/QOS policy",
     "your account may not have so much at once, or needs --account or --time"},
    {"Unable to contact slurm controller",
     "the controller does not answer; see `scontrol ping`, and try again"},
    {"Socket timed out", "the controller is busy or does not answer; see `scontrol ping`"},
    {"Zero Bytes were transmitted", "munge does not run here, or its key is another one"},
    {"Protocol authentication error", "munge does not run here, or its key is another one"},
    {"unrecognized option", "ddprun's own options go behind --"},
    {"invalid option", "ddprun's own options go behind --"},
}};

bool contains(std::string_view text, std::string_view phrase) {
  const auto same = [](char a, char b) {
    return std::tolower(static_cast<unsigned char>(a)) ==
           std::tolower(static_cast<unsigned char>(b));
  };
  return std::search(text.begin(), text.end(), phrase.begin(), phrase.end(), same) != text.end();
}

// "sbatch: error: Batch job submission failed: Invalid qos" -> "Invalid qos".
std::string_view without_prefixes(std::string_view line) {
  for (const std::string_view prefix :
       {"sbatch: ", "error: ", "fatal: ", "Batch job submission failed: "}) {
    if (line.starts_with(prefix)) line.remove_prefix(prefix.size());
  }
  return line;
}

}  // namespace

std::string plain_refusal(std::string_view errors) {
  constexpr std::size_t kLinesMax = 5, kLineMax = 300;
  std::string text;
  for (std::size_t lines = 0; !errors.empty() && lines < kLinesMax;) {
    const std::size_t end = errors.find('\n');
    const std::string_view line = without_prefixes(errors.substr(0, end));
    errors.remove_prefix(end == std::string_view::npos ? errors.size() : end + 1);
    if (line.empty() || line.starts_with("Try \"sbatch --help\"")) continue;
    text += (text.empty() ? "" : "; ") + std::string(line.substr(0, kLineMax));
    ++lines;
  }
  if (text.empty()) text = "it printed no reason";
  for (const auto& [phrase, remedy] : kRemedies) {
    if (contains(text, phrase)) return text + ": " + std::string(remedy);
  }
  return text;
}

std::string hints(const SlurmOptions& options, const std::string& run,
                  const std::vector<std::string>& jobs) {
  std::string text;
  if (options.is_elastic()) {
    text += "add a node:     ddprun slurm --join " + run + "\n";
    if (joining_jobs(options) > 0 && !jobs.empty()) {
      text += "take one away:  scancel --signal=USR1 " + jobs.back() +
              "   (queued again; without --signal for good)\n";
    }
  }
  if (!options.join.empty()) return text;
  text += "end the run:    scancel";
  for (const std::string& number : jobs) text += " " + number;
  return text + "\n";
}

std::string dry_run_text(const SlurmOptions& options, const std::string& program,
                         const std::string& name) {
  const bool joins = !options.join.empty();
  const bool here = options.has_daemon_here();
  std::string text = joins  ? joining_job(options, program, options.join).script
                     : here ? daemon_script(program, name)
                     : !options.daemon_on.empty() ? daemon_job(options, program).script
                                                  : first_job(options, program).script;
  const int more = joining_jobs(options);
  std::string comment =
      here ? "# Printed by ddprun slurm --dry-run. On this host, in the background:\n"
             "#   setsid --fork bash FILE >daemon.out 2>&1 </dev/null\n"
           : "# Printed by ddprun slurm --dry-run: sbatch submits this file as it is.\n";
  if (joins && more > 1) comment += "# " + std::to_string(more) + " times.\n";
  if (!joins && !options.daemon_on.empty()) {
    comment +=
        (here ? "# Then: ddprun slurm --join " + name
              : std::string("# Then, with the number of that job: ddprun slurm --join JOB")) +
        " --nodes " + std::to_string(options.nodes->max) + " -- " +
        shell_line(words_of_run(options)) + "\n";
  } else if (!joins && more > 0) {
    comment += "# Then, with the number of that job: ddprun slurm --join JOB --nodes " +
               std::to_string(more) + "\n";
  }
  text.insert(text.find('\n') + 1, comment + "#\n");  // Behind "#!/bin/bash".
  return text;
}

}  // namespace ddprun::launcher
