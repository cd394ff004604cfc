#include "launcher/options/help.h"

#include <algorithm>

#include "common/exit_status.h"
#include "common/text/screen.h"
#include "launcher/options/flags.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kHelpColumn = 39;
constexpr std::size_t kColumns = 100;

// What most command lines are made of; the others are in `--help all` and the manual page.
constexpr std::string_view kUsedMost[] = {"standalone",     "nnodes",
                                          "nproc-per-node", "local-nodes",
                                          "hosts",          "node-rank",
                                          "rdzv-endpoint",  "rdzv-id",
                                          "token-file",     "max-restarts",
                                          "error-file",     "module",
                                          "log-dir",        "shutdown-timeout",
                                          "redirects",      "tee",
                                          "report",         "verbose",
                                          "quiet",          "dry-run",
                                          "version",        "help"};

constexpr std::string_view kHelpHead =
    R"(usage: ddprun [options] PROGRAM [its arguments]

Starts PROGRAM as the workers of a distributed training run, on this machine and on others,
supervises them, and reports why a run failed. Accepts torchrun's command lines.

Examples
  ddprun --standalone --nproc-per-node 2 train          two workers on this machine
  ddprun --nproc-per-node gpu train.py --epochs 3       one worker per GPU, with PyTorch
  ddprun --nnodes 2 --nproc-per-node 8 train            prints the line to paste on machine two
  ddprun --nnodes 2:4 --max-restarts 3 --rdzv-endpoint node1:29400 train
                                                        the same line on each of 2 to 4 machines
  ddprun --nnodes 2:8 --host-discovery ./hosts.sh train.py
                                                        a node by ssh on each host that the
                                                        script lists
  ddprun --local-nodes 2 --nproc-per-node 2 train       two nodes, both on this machine
  ddprun doctor                                         is this machine fit? see doctor --help
)";

constexpr std::string_view kHelpTail = R"(
Flags may be spelled with - or _ and abbreviated unless ambiguous (--nproc-per 2). The variable
PET_<FLAG> sets a flag's default: PET_NNODES=2 is --nnodes 2. All that follows PROGRAM is passed to
PROGRAM. The interpreter of scripts and modules is PYTHON_EXEC, else the python3 beside ddprun in a
virtual or conda environment, else that of PATH. The run's token is read from --token-file,
DDPRUN_TOKEN or the file named by DDPRUN_TOKEN_FILE. Without a flag, DDPRUN_ENDPOINT names the
endpoint.
)";

std::string exit_codes() {
  std::string codes = "Exit codes: ";
  for (const auto& [code, meaning] : kExitMeanings) {
    codes += std::to_string(code) + ": " + meaning + "; ";
  }
  std::string text;
  for (const std::string& line : wrapped_lines(codes + kExitElse + ".", kColumns)) {
    text += line + "\n";
  }
  return text;
}

std::string left_side(const Flag& flag) {
  std::string text = flag.letter == '\0' ? "      " : std::string("  -") + flag.letter + ", ";
  text += "--" + std::string(flag.name);
  if (!flag.value.empty()) text += " " + std::string(flag.value);
  return text;
}

bool is_used_most(const Flag& flag) {
  return std::find(std::begin(kUsedMost), std::end(kUsedMost), flag.name) != std::end(kUsedMost);
}

}  // namespace

std::string help_text(Flags which) {
  std::string text(kHelpHead);
  std::string_view group;
  for (const Flag& flag : all_flags()) {
    if (which == Flags::kUsedMost && !is_used_most(flag)) continue;
    if (flag.group != group) text += "\n" + std::string(flag.group) + "\n";
    group = flag.group;
    std::string line = left_side(flag);
    line.resize(std::max(line.size() + 2, kHelpColumn), ' ');
    text += line + std::string(flag.help) + "\n";
  }
  if (which == Flags::kUsedMost) {
    const auto others = all_flags().size() - std::size(kUsedMost);
    text += "\nand " + std::to_string(others) +
            " more, including torchrun's other flags: ddprun --help all\n";
  }
  return text + std::string(kHelpTail) + exit_codes();
}

}  // namespace ddprun::launcher
