#include "launcher/ctl/ctl_completion.h"

#include <algorithm>

#include "common/assert.h"

namespace ddprun::launcher {
namespace {

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::vector<std::string> names_of(const std::vector<CtlVerb>& verbs) {
  std::vector<std::string> names;
  for (const CtlVerb& verb : verbs) {
    if (!verb.name.empty()) names.push_back(verb.name);
  }
  return names;
}

std::string ctl_for_bash(const std::vector<CtlVerb>& verbs) {
  std::string script =
      "# ddprunctl completion for bash: source <(ddprunctl --print-completion bash)\n"
      "_ddprunctl() {\n"
      "  local word=${COMP_WORDS[COMP_CWORD]} i flags='' verbs='" +
      joined(names_of(verbs)) +
      "'\n"
      "  case ${COMP_WORDS[COMP_CWORD-1]} in\n"
      "    --token-file) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n"
      "    --print-completion) COMPREPLY=($(compgen -W 'bash zsh tcsh' -- \"$word\")); return ;;\n"
      "  esac\n"
      "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
      "    case ${COMP_WORDS[i]} in\n";
  std::string common;
  for (const CtlVerb& verb : verbs) {
    if (verb.name.empty()) common = joined(verb.flags);
    if (verb.name.empty()) continue;
    script += "      " + verb.name + ") verbs= flags='" + joined(verb.flags) + "' ;;\n";
  }
  return script +
         "    esac\n"
         "  done\n"
         "  [[ $word == -* ]] && verbs=\"$flags " +
         common +
         "\"\n"
         "  COMPREPLY=($(compgen -W \"$verbs\" -- \"$word\"))\n"
         "}\n"
         "complete -F _ddprunctl ddprunctl\n";
}

std::string ctl_for_zsh(const std::vector<CtlVerb>& verbs) {
  std::string script =
      "#compdef ddprunctl\n"
      "# ddprunctl completion for zsh: source <(ddprunctl --print-completion zsh)\n"
      "_ddprunctl() {\n"
      "  local verb flags=\n"
      "  for verb in $words[2,CURRENT-1]; do\n"
      "    case $verb in\n";
  std::string common;
  for (const CtlVerb& verb : verbs) {
    if (verb.name.empty()) common = joined(verb.flags);
    if (verb.name.empty()) continue;
    script += "      " + verb.name + ") flags='" + joined(verb.flags) + "' ;;\n";
  }
  return script +
         "    esac\n"
         "  done\n"
         "  if [[ $words[CURRENT] == -* ]]; then\n"
         "    compadd -- ${=flags} " +
         common +
         "\n"
         "  elif [[ -z $flags ]]; then\n"
         "    compadd -- " +
         joined(names_of(verbs)) +
         "\n"
         "  else\n"
         "    _files\n"
         "  fi\n"
         "}\n"
         "compdef _ddprunctl ddprunctl\n";
}

std::string ctl_for_tcsh(const std::vector<CtlVerb>& verbs) {
  std::vector<std::string> flags;
  for (const CtlVerb& verb : verbs) {
    for (const std::string& flag : verb.flags) {
      if (flag.starts_with("--")) flags.push_back(flag.substr(2));
    }
  }
  std::sort(flags.begin(), flags.end());
  flags.erase(std::unique(flags.begin(), flags.end()), flags.end());
  return "# ddprunctl completion for tcsh: ddprunctl --print-completion tcsh > f; source f\n"
         "complete ddprunctl 'n@--token-file@f@' 'c@--@(" +
         joined(flags) + ")@' 'p@*@(" + joined(names_of(verbs)) + ")@'\n";
}

}  // namespace

std::string ctl_completion_script(std::string_view shell, const std::vector<CtlVerb>& verbs) {
  DDPRUN_ASSERT(shell == "bash" || shell == "zsh" || shell == "tcsh");
  if (shell == "tcsh") return ctl_for_tcsh(verbs);
  return shell == "bash" ? ctl_for_bash(verbs) : ctl_for_zsh(verbs);
}

}  // namespace ddprun::launcher
