#include "launcher/options/doctor_options.h"

#include "common/options/command_line.h"
#include "launcher/options/hosts.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

constexpr const char* kExamples = R"(Examples
  ddprun doctor                               is this machine fit for a run?
  ddprun doctor --hosts node1,node2,node3     are these, alone and together?
  ddprun doctor --hosts node1,node2 train     the program and its libraries, too
  ddprun doctor --json | jq '.checks[] | select(.status != "ok")'

Exit codes: 0: all well; 1: warnings; 2: unfit: a run fails or may give wrong results; 3: something
that matters could not be measured, or usage. To start a program named doctor: ddprun ./doctor.)";

void store_port(DoctorOptions& options, std::uint16_t port) {
  if (port != 0) options.port = port;
}

const OptionTable<DoctorOptions>& doctor_table() {
  using O = DoctorOptions;
  static const OptionTable<O> kTable = {
      {"",
       {{"hosts", &O::hosts, parse_hosts, "HOST[:N],...", "Check these hosts by ssh: HOST[:N],..."},
        {"ssh", &O::ssh, parse_words, "COMMAND", "ssh command for --hosts [ssh]"},
        {"env", &O::env, parse_variable_names, "NAME,...",
         "Further variables that --hosts transfers"},
        {"nproc-per-node",
         &O::workers,
         parse_worker_count,
         "N",
         "Workers on each node: N, auto, gpu or cpu [auto]",
         {.words = "auto gpu cpu"}},
        {"memory-folder", &O::memory_folder, parse_memory_folder, "SIZE[,at=FOLDER]",
         "Check that a run with this --memory-folder has the memory"},
        {"port", store_port, parse_port, "PORT",
         "Port where the nodes meet [29400; a random one with --hosts]"},
        {"color",
         &O::colour,
         one_of<Colour>(
             {{"auto", Colour::kAuto}, {"always", Colour::kAlways}, {"never", Colour::kNever}}),
         "WHEN",
         "auto, always or never [auto]",
         {.words = "auto always never"}},
        {"ascii", &O::ascii, "Print ASCII characters only"},
        {"json", &O::json, "As JSON; docs/doctor.md has its fields"},
        {"verbose", &O::verbose, "List the good checks of several nodes, too", {.letter = 'v'}},
        {"far-end", &O::far_end, "", {.hidden = true}},
        {"program",
         &O::program,
         any_text,
         "PROGRAM",
         "Compare this program and its libraries between nodes",
         {.positional = true}},
        {"help", PrintsAndEnds{}, "", "Print this help message and exit", {.letter = 'h'}}}}};
  return kTable;
}

}  // namespace

std::span<const Option> doctor_options() { return doctor_table().options(); }

Result<DoctorOutcome> parse_doctor(int argc, const char* const* argv) {
  const ProgramSpec program = {
      .name = "ddprun doctor",
      .description = "Checks whether machines are fit for a run. Nothing is changed.",
      .footer = kExamples,
      .options = doctor_options()};
  const auto line = read_command_line(program, argc, argv);
  if (!line) return line.error();
  if (!line->to_print.empty()) return DoctorOutcome(PrintAndExit{line->to_print});
  DoctorOptions options;
  const auto stored = doctor_table().store(line->values, options);
  if (!stored) return stored.error();
  return DoctorOutcome(std::move(options));
}

std::vector<std::string> far_end_argv(const DoctorOptions& options) {
  std::vector<std::string> argv = {"ddprun", std::string(kDoctorCommand), "--far-end",
                                   "--nproc-per-node", to_string(options.workers)};
  if (const MemoryFolder& memory = options.memory_folder; memory.bytes > 0) {
    const std::string at = memory.at.empty() ? "" : ",at=" + memory.at;
    std::size_t unit = 0;  // The largest that divides it: numbers above 1,000,000 are refused.
    auto size = memory.bytes >> 10;
    for (; unit < 3 && size % 1024 == 0; ++unit) size >>= 10;
    argv.insert(argv.end(), {"--memory-folder", std::to_string(size) + "KMGT"[unit] + at});
  }
  if (!options.program.empty()) argv.insert(argv.end(), {"--", options.program});
  return argv;
}

}  // namespace ddprun::launcher
