#include "launcher/options/slurm_options.h"

#include <algorithm>
#include <array>
#include <cctype>

#include "common/options/command_line.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

constexpr int kExtraJobsMax = 1'000;

constexpr const char* kExamples =
    R"(All other options before -- are sbatch's; the script that --dry-run shows has their defaults.
What follows -- is a command line of ddprun. Without --nodes the run gets a part of one node.

Examples
  ddprun slurm --gpus=2 --cpus-per-task=16 -- --nproc-per-node gpu train.py
  ddprun slurm --nodes 4 --gpus-per-node=8 --time=2:00:00 -- --nproc-per-node gpu train.py
  ddprun slurm --nodes 4 --partition=spot --requeue -- --nproc-per-node gpu train.py
                                              queued again after the time limit or a pre-emption
  ddprun slurm --nodes 2:6 -- --max-restarts 20 train.py
                                              2 nodes, and 4 jobs of one node that come and go
  ddprun slurm --join 4711 --nodes 2          two more for the run of job 4711
  ddprun slurm --daemon-on service --nodes 2:6 --partition=spot -- --max-restarts 20 train.py
                                              all of its nodes may be taken away
  ddprun slurm --daemon-on this-host --nodes 2:6 --partition=spot -- --max-restarts 20 train.py
                                              likewise, with the daemon in the background here
  ddprun slurm --dry-run --nodes 4 -- train.py > my.sbatch

docs/slurm.md has more. To start a program named slurm: ddprun ./slurm.)";

Result<std::string> parse_job(std::string_view text) {
  if (is_job_number(text) || is_run_name(text)) return std::string(text);
  return Failure{Errc::kBadOption, "give the number of a job"};
}

// sbatch gets every other form as it is, and refuses what is none.
Result<void> store_nodes(SlurmOptions& options, const std::string& text) {
  options.nodes_text = text;
  const bool is_own = text.find(':') != std::string::npos ||
                      text.find_first_not_of("0123456789") == std::string::npos;
  if (!is_own) return {};
  const Result<NodeRange> nodes = parse_nnodes(text);
  if (!nodes) return nodes.error();
  options.nodes = *nodes;
  return {};
}

const OptionTable<SlurmOptions>& slurm_table() {
  using O = SlurmOptions;
  static const OptionTable<O> kTable = {
      {"",
       {{"nodes",
         &O::nodes_text,
         any_text,
         "N|MIN:MAX",
         "Whole nodes; with MIN:MAX one job of MIN, and MAX-MIN jobs of one node that join",
         {.letter = 'N'}},
        {"join", &O::join, parse_job, "JOB",
         "Add nodes to the run of this job [one]; without -- its own command line"},
        {"daemon-on", &O::daemon_on, any_text, "PARTITION|this-host",
         "Run the daemon as a job of its own there, where nodes are not taken away, or in the "
         "background here [on the first node]"},
        {"dry-run", &O::dry_run, "Print the script, which sbatch takes as it is; submit nothing"},
        {"help", PrintsAndEnds{}, "", "Print this help message and exit", {.letter = 'h'}}}}};
  return kTable;
}

// The row of a word such as "--nodes=4", "-N" or "-N4", and the value in the word, if there is one.
struct Found {
  const Option* option = nullptr;
  std::optional<std::string> value;
};

Found find_own(const std::string& word) {
  for (const Option& option : slurm_options()) {
    const std::string name = long_name(option);
    if (word == name) return {&option, {}};
    if (word.starts_with(name + "=")) return {&option, word.substr(name.size() + 1)};
    if (option.letter == '\0' || !word.starts_with(std::string("-") + option.letter)) continue;
    if (word.size() == 2) return {&option, {}};
    if (takes_value(option)) return {&option, word.substr(2)};
  }
  return {};
}

bool is_help(const std::string& word) { return word == "--help" || word == "-h"; }

// Reads the words before "--" into `options`.
Result<void> read_words(const std::vector<std::string>& words, SlurmOptions& options) {
  for (std::size_t i = 0; i < words.size(); ++i) {
    Found found = find_own(words[i]);
    if (!found.option) {
      options.sbatch.push_back(words[i]);
      continue;
    }
    if (takes_value(*found.option) && !found.value) {
      if (++i == words.size()) return usage(words[i - 1] + " needs a value");
      found.value = words[i];
    }
    if (!takes_value(*found.option) && found.value) {
      return usage(words[i] + ": " + long_name(*found.option) + " has no value");
    }
    const auto stored = slurm_table().store(
        {found.option, long_name(*found.option), found.value.value_or("true")}, options);
    if (!stored) return stored;
  }
  if (options.nodes_text.empty()) return {};
  const Result<void> stored = store_nodes(options, options.nodes_text);
  if (stored) return stored;
  return usage("--nodes " + quoted_value(options.nodes_text) + ": " + stored.error().context);
}

bool names(const std::string& word, std::string_view option, std::string_view letter) {
  if (!letter.empty() && word.starts_with(letter) && !word.starts_with("--")) return true;
  return word == option || word.starts_with(std::string(option) + "=");
}

// What the scripts cannot do with options of sbatch.
std::optional<Failure> refused_for_sbatch(const SlurmOptions& options) {
  for (const std::string& word : options.sbatch) {
    if (word.find_first_of("\n\r") != std::string::npos) {
      return usage("an option of sbatch contains the end of a line");
    }
    if (names(word, "--ntasks-per-node", "") || names(word, "--ntasks", "-n")) {
      return usage(word +
                   ": Slurm starts one ddprun per node, which starts the workers: give "
                   "--nproc-per-node behind --");
    }
    if (names(word, "--wait", "-W")) {
      return usage(word + ": save the script that --dry-run prints, and give it to sbatch --wait");
    }
    if (names(word, "--parsable", "") || names(word, "--wrap", "")) {
      return usage(word + " cannot be combined with ddprun slurm");
    }
    if (options.is_elastic() && names(word, "--array", "-a")) {
      return usage(
          word +
          " cannot be combined with --nodes MIN:MAX, --join or --daemon-on: each task would be "
          "a run of its own");
    }
  }
  return std::nullopt;
}

std::optional<Failure> contradiction(const SlurmOptions& options, const Options& of_run) {
  if (!of_run.hosts.empty() || !of_run.host_discovery.empty()) {
    return usage(
        "--hosts and --host-discovery start nodes by ssh; here Slurm starts them: give "
        "--nodes before --");
  }
  if (!options.is_elastic() || !options.join.empty() || !of_run.nnodes) return std::nullopt;
  if (*of_run.nnodes == *options.nodes) return std::nullopt;
  return usage("--nnodes behind -- is another range than --nodes " + options.nodes_text +
               " before it; it can be left out");
}

// ddprun would refuse it as well, but not before Slurm has started it.
Result<std::optional<PrintAndExit>> check_run(const SlurmOptions& options,
                                              const Environment& environment) {
  if (options.argv.empty()) return std::optional<PrintAndExit>();
  std::vector<const char*> argv = {"ddprun"};
  for (const std::string& word : options.argv) argv.push_back(word.c_str());
  const auto outcome = parse(static_cast<int>(argv.size()), argv.data(), environment);
  if (!outcome) return outcome.error();
  if (const auto* print = std::get_if<PrintAndExit>(&*outcome)) return std::optional(*print);
  if (auto wrong = contradiction(options, std::get<Options>(*outcome))) return *wrong;
  return std::optional<PrintAndExit>();
}

std::optional<Failure> check(const SlurmOptions& options, bool has_dashes) {
  if (!has_dashes && options.join.empty()) {
    return usage(
        "-- is missing between the options of sbatch and the command line of ddprun, as "
        "in: ddprun slurm --nodes 2 -- --nproc-per-node gpu train.py");
  }
  if (options.argv.empty() && options.join.empty()) return usage("PROGRAM is missing behind --");
  const bool is_range = options.nodes && options.nodes->min < options.nodes->max;
  if (!options.join.empty() && (is_range || (!options.nodes && !options.nodes_text.empty()))) {
    return usage("--join needs one number for --nodes: that many nodes are added");
  }
  if (!options.daemon_on.empty() && !options.join.empty()) {
    return usage("--daemon-on is for a new run; the one of --join has its daemon");
  }
  if (!options.daemon_on.empty() && !options.nodes) {
    return usage("--daemon-on needs --nodes N or --nodes MIN:MAX");
  }
  if (options.daemon_on.starts_with("-") ||
      options.daemon_on.find_first_of("\n\r ") != std::string::npos) {
    return usage("--daemon-on " + quoted_value(options.daemon_on) + ": give one partition");
  }
  const int extra = !options.nodes          ? 0
                    : !options.join.empty() ? options.nodes->max
                                            : options.nodes->max - options.nodes->min;
  if (extra > kExtraJobsMax) {
    return usage("--nodes " + options.nodes_text + ": more than " + std::to_string(kExtraJobsMax) +
                 " jobs of one node");
  }
  return refused_for_sbatch(options);
}

}  // namespace

bool is_job_number(std::string_view text) {
  return parse_integer(text, 1, 2'147'483'647).has_value();
}

bool is_run_name(std::string_view text) {
  constexpr std::size_t kMost = 100, kRandom = 6;
  const std::size_t end = text.rfind('-');
  if (end == std::string_view::npos || end == 0 || text.size() > kMost) return false;
  const std::string_view host = text.substr(0, end), random = text.substr(end + 1);
  const auto is_host = [](unsigned char c) { return std::isalnum(c) || c == '-' || c == '_'; };
  return std::all_of(host.begin(), host.end(), is_host) && random.size() == kRandom &&
         random.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

std::span<const Option> slurm_options() { return slurm_table().options(); }

Result<SlurmOutcome> parse_slurm(int argc, const char* const* argv,
                                 const Environment& environment) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto dashes = std::find(words.begin(), words.end(), "--");
  const std::vector<std::string> before(words.begin(), dashes);
  if (std::any_of(before.begin(), before.end(), is_help)) {
    const ProgramSpec program = {
        .name = "ddprun slurm",
        .description =
            "Submits a run to Slurm. usage: ddprun slurm [options] [options of sbatch] "
            "-- [options of ddprun] PROGRAM",
        .footer = kExamples,
        .options = slurm_options()};
    const std::array<const char*, 2> help = {"slurm", "--help"};
    const auto line = read_command_line(program, 2, help.data());
    if (!line) return line.error();
    return SlurmOutcome(PrintAndExit{line->to_print});
  }
  SlurmOptions options;
  if (const auto read = read_words(before, options); !read) return read.error();
  const bool has_dashes = dashes != words.end();
  if (has_dashes) options.argv.assign(dashes + 1, words.end());
  if (auto wrong = check(options, has_dashes)) return *wrong;
  const auto printed = check_run(options, environment);
  if (!printed) return printed.error();
  if (*printed) return SlurmOutcome(**printed);
  return SlurmOutcome(std::move(options));
}

}  // namespace ddprun::launcher
