#pragma once
// Completion scripts of ddprunctl. Pure.

#include <string>
#include <string_view>
#include <vector>

namespace ddprun::launcher {

// A verb of ddprunctl with the flags that it takes ("--run", ...); those of every verb have none.
struct CtlVerb {
  std::string name;
  std::vector<std::string> flags;
};
// `shell` is "bash", "zsh" or "tcsh".
std::string ctl_completion_script(std::string_view shell, const std::vector<CtlVerb>& verbs);

}  // namespace ddprun::launcher
