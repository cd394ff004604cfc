#include "launcher/help.h"

#include <algorithm>

#include "common/assert.h"
#include "launcher/flags.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kHelpColumn = 39;

// What most command lines are made of; the others are in `--help all` and the manual page.
constexpr std::string_view kUsedMost[] = {
    "standalone", "nnodes",        "nproc-per-node", "local-nodes",      "hosts",
    "node-rank",  "rdzv-endpoint", "rdzv-id",        "token-file",       "max-restarts",
    "error-file", "module",        "log-dir",        "shutdown-timeout", "redirects",
    "tee",        "report",        "verbose",        "quiet",            "dry-run",
    "version",    "help"};

constexpr std::string_view kHead =
    R"(usage: ddprun [options] PROGRAM [its arguments]

Starts PROGRAM as the workers of one distributed training run, on this machine and on others,
watches them, and says why if they fail. Takes torchrun's command lines.

Examples
  ddprun --standalone --nproc-per-node 2 train          two workers on this machine
  ddprun --nproc-per-node gpu train.py --epochs 3       one for each GPU, with PyTorch
  ddprun --nnodes 2 --nproc-per-node 8 train            prints the line to paste on machine two
  ddprun --nnodes 2:4 --max-restarts 3 --rdzv-endpoint node1:29400 train
                                                        the same line on each of 2 to 4 machines
  ddprun --local-nodes 2 --nproc-per-node 2 train       two nodes, both on this machine
)";

constexpr std::string_view kTail = R"(
Each flag may be spelled with - or _, and cut short as far as no other begins so (--nproc-per 2); it
has its default in PET_<FLAG>: PET_NNODES=2 is --nnodes 2. What stands after PROGRAM is PROGRAM's.
The run's token is read from DDPRUN_TOKEN, the file named in DDPRUN_TOKEN_FILE or --token-file, and
the endpoint from DDPRUN_ENDPOINT where no flag gives it.
Exit codes: 0 all workers ended well; 2 usage; 3 the nodes did not come together in time; otherwise
that of the first worker that failed, 128+n if signal n ended it; 1 ddprun itself failed.
)";

std::string left_side(const Flag& flag) {
  std::string text = flag.letter == '\0' ? "      " : std::string("  -") + flag.letter + ", ";
  text += "--" + std::string(flag.name);
  if (!flag.value.empty()) text += " " + std::string(flag.value);
  return text;
}

bool is_used_most(const Flag& flag) {
  return std::find(std::begin(kUsedMost), std::end(kUsedMost), flag.name) != std::end(kUsedMost);
}

std::string quoted_for_zsh(std::string_view text) {
  std::string quoted;
  for (const char letter : text) {
    if (letter == '[' || letter == ']' || letter == ':') quoted += '\\';
    if (letter == '\'') quoted += "'\\'";
    quoted += letter;
  }
  return quoted;
}

std::string bash_cases() {
  std::string cases;
  for (const Flag& flag : all_flags()) {
    if (flag.value.empty()) continue;
    cases += "    --" + std::string(flag.name);
    if (underscored(flag.name) != flag.name) cases += "|--" + underscored(flag.name);
    if (flag.letter != '\0') cases += std::string("|-") + flag.letter;
    if (flag.choices == "@file") {
      cases += ") COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n";
    } else if (flag.choices == "@dir") {
      cases += ") COMPREPLY=($(compgen -d -- \"$word\")); return ;;\n";
    } else {
      cases += ") COMPREPLY=($(compgen -W '" + std::string(flag.choices) +
               "' -- \"$word\")); return ;;\n";
    }
  }
  return cases;
}

std::string bash_script() {
  std::string names;
  for (const std::string& name : flag_names()) names += (names.empty() ? "" : " ") + name;
  return "# ddprun completion for bash: source <(ddprun --print-completion bash)\n"
         "_ddprun() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]}\n"
         "  case $previous in\n" +
         bash_cases() +
         "  esac\n"
         "  if [[ $word == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W '" +
         names +
         "' -- \"$word\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -f -c -- \"$word\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _ddprun ddprun\n";
}

std::string zsh_script() {
  std::string script =
      "#compdef ddprun\n"
      "# ddprun completion for zsh: source <(ddprun --print-completion zsh)\n"
      "_ddprun() {\n"
      "  _arguments -S \\\n";
  for (const Flag& flag : all_flags()) {
    script += "    '--" + std::string(flag.name) + "[" + quoted_for_zsh(flag.help) + "]";
    if (!flag.value.empty()) script += ":" + quoted_for_zsh(flag.value) + ":";
    if (flag.choices == "@file") {
      script += "_files";
    } else if (flag.choices == "@dir") {
      script += "_files -/";
    } else if (!flag.choices.empty()) {
      script += "(" + std::string(flag.choices) + ")";
    }
    script += "' \\\n";
  }
  return script +
         "    '1:program:_files' '*::arguments:_files'\n"
         "}\n"
         "compdef _ddprun ddprun\n";
}

// tcsh has one line for it all: what follows a flag that has words, then the flags themselves.
std::string tcsh_script() {
  std::string names, words;
  for (const Flag& flag : all_flags()) {
    const std::string name = "--" + std::string(flag.name);
    names += (names.empty() ? "" : " ") + std::string(flag.name);
    if (flag.value.empty()) continue;
    const std::string spelled = underscored(flag.name) == flag.name
                                    ? name
                                    : "{" + name + ",--" + underscored(flag.name) + "}";
    const std::string what = flag.choices == "@file"  ? "f"
                             : flag.choices == "@dir" ? "d"
                             : flag.choices.empty()   ? "x:" + std::string(flag.value) + ":"
                                                      : "(" + std::string(flag.choices) + ")";
    words += " \\\n  'n@" + spelled + "@" + what + "@'";
  }
  return "# ddprun completion for tcsh: ddprun --print-completion tcsh > f; source f\n"
         "complete ddprun" +
         words + " \\\n  'c@--@(" + names + ")@' \\\n  'p@*@f@'\n";
}

}  // namespace

std::string help_text(Flags which) {
  std::string text(kHead);
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
    text += "\nand " + std::to_string(others) + " more, also torchrun's others: ddprun --help all\n";
  }
  return text + std::string(kTail);
}

std::string completion_script(std::string_view shell) {
  DDPRUN_ASSERT(shell == "bash" || shell == "zsh" || shell == "tcsh");
  if (shell == "tcsh") return tcsh_script();
  return shell == "bash" ? bash_script() : zsh_script();
}

}  // namespace ddprun::launcher
