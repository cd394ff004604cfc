#include "agent/output/terminal_facts.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "common/text/utf8_locale.h"

namespace ddprun::agent {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

}  // namespace

TerminalFacts look_at_terminal() {
  winsize size{};
  const bool terminal =
      ::isatty(STDERR_FILENO) == 1 && ::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0;
  const bool moves =
      variable("TERM") != "dumb" && variable("CI").empty() && variable("GITHUB_ACTIONS").empty();
  return {.can_move = terminal && moves,
          .colour = terminal && moves && variable("NO_COLOR").empty(),
          .utf8 = is_utf8_locale(variable),
          .columns = size.ws_col > 0 ? size.ws_col : 80};
}

bool has_foreground(int launcher) {
  const pid_t foreground = ::tcgetpgrp(STDERR_FILENO);
  if (foreground < 0) return true;  // Of nobody's session.
  return foreground == ::getpgid(launcher) || foreground == ::getpgrp();
}

}  // namespace ddprun::agent
