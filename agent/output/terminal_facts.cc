#include "agent/output/terminal_facts.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <string>

#include "common/system/variable.h"
#include "common/text/screen.h"

namespace ddprun::agent {
TerminalFacts look_at_terminal() {
  winsize size{};
  const bool terminal =
      ::isatty(STDERR_FILENO) == 1 && ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0;
  const bool moves = environment_variable("TERM") != "dumb" && environment_variable("CI").empty() &&
                     environment_variable("GITHUB_ACTIONS").empty();
  return {.can_move = terminal && moves,
          .colour = terminal && moves && environment_variable("NO_COLOR").empty(),
          .utf8 = is_utf8_locale(environment_variable),
          .columns = size.ws_col > 0 ? size.ws_col : 80};
}

bool has_foreground(int launcher) {
  const pid_t foreground = ::tcgetpgrp(STDERR_FILENO);
  if (foreground < 0) return true;  // Of nobody's session.
  return foreground == ::getpgid(launcher) || foreground == ::getpgrp();
}

}  // namespace ddprun::agent
