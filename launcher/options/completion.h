#pragma once
// Completion scripts of ddprun, made from the table of flags, and of ddprunctl. Pure.

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

// `shell` is "bash", "zsh" or "tcsh". The first two complete flags up to PROGRAM, and files behind
// it; tcsh cannot tell where PROGRAM stands.
std::string completion_script(std::string_view shell);

// A verb of ddprunctl with the flags that it takes ("--run", ...); those of every verb have none.
struct CtlVerb {
  std::string name;
  std::vector<std::string> flags;
};
std::string ctl_completion_script(std::string_view shell, const std::vector<CtlVerb>& verbs);

}  // namespace ddprun::launcher
