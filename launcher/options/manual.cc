#include "launcher/options/manual.h"

#include <string_view>

#include "common/exit_status.h"
#include "launcher/options/flags.h"

namespace ddprun::launcher {
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
.fi
.SH SEE ALSO
.BR ddprun\-doctor (1),
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

std::string entry(const Flag& flag) {
  std::string text = ".TP\n\\fB";
  if (flag.letter != '\0') text += std::string("\\-") + flag.letter + "\\fR, \\fB";
  text += plain("--" + std::string(flag.name)) + "\\fR";
  if (!flag.value.empty()) text += " \\fI" + plain(flag.value) + "\\fR";
  return text + "\n" + plain(flag.help) + "\n";
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
  for (const Flag& flag : all_flags()) {
    if (flag.group != group) text += ".SH " + plain(flag.group) + "\n";
    group = flag.group;
    text += entry(flag);
  }
  return text + std::string(kManualSettings) + exit_status_section() + std::string(kManualTail);
}

}  // namespace ddprun::launcher
