#include "launcher/options/help.h"

#include <algorithm>
#include <cctype>
#include <string_view>

#include "common/exit_status.h"
#include "common/text/display.h"
#include "common/text/words.h"
#include "launcher/options/flags.h"

namespace ddprun::launcher {
namespace {

std::string dashed(std::string_view word) {
  std::string text(word);
  std::replace(text.begin(), text.end(), '_', '-');
  return text;
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  constexpr std::size_t kPrefixLettersMin = 2;
  const std::string wanted = dashed(word);
  const std::size_t far = std::max<std::size_t>(1, wanted.size() / 3) + 1;
  std::string best;
  std::size_t best_distance = far;
  for (const std::string& name : known) {
    const std::string candidate = dashed(name);
    const bool begins = wanted.size() >= kPrefixLettersMin && candidate.starts_with(wanted);
    const std::size_t distance = begins ? 0 : edit_distance(wanted, candidate);
    if (distance < best_distance) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view word, const std::vector<std::string>& known) {
  const std::string name = nearest(word, known);
  return name.empty() ? "" : "; did you mean " + name + "?";
}

namespace {

constexpr std::size_t kHelpColumn = 39;
constexpr std::size_t kColumns = 100;

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
  ddprun slurm --nodes 4 -- --nproc-per-node gpu train.py
                                                        submits this to Slurm; see slurm --help
  ddprun replay bundles/job7-step-812.bundle            a step that has failed, alone; see
                                                        replay --help
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

std::string left_side(const Option& option) {
  std::string text = option.letter == '\0' ? "      " : std::string("  -") + option.letter + ", ";
  text += long_name(option);
  if (!option.value.empty()) text += " " + std::string(option.value);
  return text;
}

}  // namespace

std::string help_text(Flags which) {
  std::string text(kHelpHead);
  std::string_view group;
  std::size_t others = 0;
  for (const Option& option : all_options()) {
    if (which == Flags::kUsedMost && !option.often_used) {
      ++others;
      continue;
    }
    if (option.group != group) text += "\n" + std::string(option.group) + "\n";
    group = option.group;
    std::string line = left_side(option);
    line.resize(std::max(line.size() + 2, kHelpColumn), ' ');
    text += line + std::string(option.help) + "\n";
  }
  if (which == Flags::kUsedMost) {
    text += "\nand " + std::to_string(others) +
            " more, including torchrun's other flags: ddprun --help all\n";
  }
  return text + std::string(kHelpTail) + exit_codes();
}

namespace {

constexpr std::string_view kManualHead =
    R"(.\" Made from launcher/options/flags.cc: DDPRUN_REWRITE=1 launcher_test "[manual]"
.TH DDPRUN 1
.SH NAME
ddprun \- start, connect and supervise the workers of a distributed training run
.SH SYNOPSIS
.B ddprun
.RI [ options ]
.I PROGRAM
.RI [ "its arguments" ]
.SH DESCRIPTION
Starts
.I PROGRAM
as the workers of a distributed training run, on this machine and on others, supervises them, and
reports why a run failed. Accepts torchrun's command lines. Flags may be spelled with \- or _ and
abbreviated unless ambiguous. The variable PET_<FLAG> sets a flag's default. All that follows
.I PROGRAM
is passed to it.
)";

constexpr std::string_view kManualSettings = R"(.SH CONFIGURATION
Defaults of flags are read from
.IR $DDPRUN_CONFIG ,
else
.IR $XDG_CONFIG_HOME/ddprun/config ,
else
.IR ~/.config/ddprun/config :
one
.B flag = value
per line; # begins a comment. The command line overrides PET_* and other variables, which override
the file.
.SH ENVIRONMENT
.TP
.B DDPRUN_ENDPOINT
the address of the rendezvous daemon, unless \-\-rdzv\-endpoint or PET_RDZV_ENDPOINT is given
.TP
.BR DDPRUN_TOKEN ", " DDPRUN_TOKEN_FILE
the run's token, or a file whose first line is the token
.TP
.B PYTHON_EXEC
the interpreter for scripts and modules [the python3 beside ddprun in a virtual or conda
environment, else that of PATH]
)";

constexpr std::string_view kManualTail = R"(.SH EXAMPLES
.nf
ddprun \-\-nproc\-per\-node 2 train.py \-\-epochs 3
ddprun \-\-nnodes 2 \-\-nproc\-per\-node 8 train
ddprun \-\-hosts a,b:4 \-\-nproc\-per\-node 8 train.py
ddprun \-\-nnodes 2:8 \-\-host\-discovery ./hosts.sh train.py
srun \-\-ntasks\-per\-node=1 ddprun \-\-nproc\-per\-node gpu train.py
ddprun slurm \-\-nodes 4 \-\- \-\-nproc\-per\-node gpu train.py
.fi
.SH SEE ALSO
.BR ddprun\-doctor (1),
.BR ddprun\-replay (1),
.BR ddprun\-slurm (1),
.BR ddprunctl (1),
.BR ddprun\-rendezvous (8)
)";

// Text for roff: no dash that is broken or made longer, no line that begins like a request.
std::string plain(std::string_view text) {
  std::string safe;
  for (const char letter : text) {
    if (letter == '-' || letter == '\\') safe += '\\';
    safe += letter == '\\' ? 'e' : letter;
  }
  return safe.starts_with('.') || safe.starts_with('\'') ? "\\&" + safe : safe;
}

std::string entry(const Option& option) {
  std::string text = ".TP\n\\fB";
  if (option.letter != '\0') text += std::string("\\-") + option.letter + "\\fR, \\fB";
  text += plain(long_name(option)) + "\\fR";
  if (!option.value.empty()) text += " \\fI" + plain(option.value) + "\\fR";
  return text + "\n" + plain(option.help) + "\n";
}

std::string exit_status_section() {
  std::string text = ".SH EXIT STATUS\n";
  for (const auto& [code, meaning] : kExitMeanings) {
    text += std::to_string(code) + ": " + plain(meaning) + ";\n";
  }
  return text + plain(kExitElse) + ".\n";
}

}  // namespace

std::string manual_page() {
  std::string text(kManualHead);
  std::string_view group;
  for (const Option& option : all_options()) {
    if (option.group != group) text += ".SH " + plain(option.group) + "\n";
    group = option.group;
    text += entry(option);
  }
  return text + std::string(kManualSettings) + exit_status_section() + std::string(kManualTail);
}

namespace {

bool is_part_of_a_word(char letter) {
  return std::isalnum(static_cast<unsigned char>(letter)) != 0 || letter == '-' || letter == '_';
}

bool mentions(std::string_view text, std::string_view word) {
  for (std::size_t at = 0; (at = text.find(word, at)) != std::string_view::npos; ++at) {
    const std::size_t end = at + word.size();
    const bool begins = at == 0 || !is_part_of_a_word(text[at - 1]);
    if (begins && (end == text.size() || !is_part_of_a_word(text[end]))) return true;
  }
  return false;
}

// "--max_restarts=3" -> "--max_restarts", if ddprun has that flag and does more than print.
std::string own_flag(const std::string& argument) {
  const std::string word = argument.substr(0, argument.find('='));
  if (!word.starts_with("--")) return "";
  std::string name = word.substr(2);
  std::replace(name.begin(), name.end(), '_', '-');
  const Option* option = find_option(all_options(), name);
  return option != nullptr && option->kind != Option::Kind::kPrint ? word : "";
}

}  // namespace

std::string misplaced_flag_hint(const std::string& program,
                                const std::vector<std::string>& arguments,
                                std::string_view last_words) {
  for (const std::string& argument : arguments) {
    if (argument == "--") break;
    const std::string flag = own_flag(argument);
    if (flag.empty() || !mentions(last_words, flag)) continue;
    return "hint: " + flag + " stands after " + program + ", so it is " + program +
           "'s; ddprun's flags stand before PROGRAM";
  }
  return "";
}

// Python's message about tcp://fd01::1:29500: it takes the port to begin at the first colon.
std::string bare_ipv6_hint(std::string_view last_words) {
  if (last_words.find("Port could not be cast to integer value as ':") == std::string_view::npos) {
    return "";
  }
  return "hint: MASTER_ADDR is an IPv6 address, which needs brackets in a URL: "
         "tcp://[$MASTER_ADDR]:$MASTER_PORT; or call init_process_group without init_method";
}

}  // namespace ddprun::launcher
