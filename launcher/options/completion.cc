#include "launcher/options/completion.h"

#include <algorithm>

#include "common/assert.h"
#include "launcher/options/flags.h"

namespace ddprun::launcher {
namespace {

// Where the words of a value come from.
enum class Source {
  kNone,   // It may be anything.
  kFiles,  // "@file"
  kDirs,   // "@dir"
  kHosts,  // "@hosts": a list of them, with commas.
  kList,   // ",a b": a list of these words, with commas.
  kWords,  // One of these words.
};

Source source_of(const Flag& flag) {
  if (flag.choices.empty()) return Source::kNone;
  if (flag.choices == "@file") return Source::kFiles;
  if (flag.choices == "@dir") return Source::kDirs;
  if (flag.choices == "@hosts") return Source::kHosts;
  return flag.choices.front() == ',' ? Source::kList : Source::kWords;
}

std::string words_of(const Flag& flag) {
  const std::string words(flag.choices);
  return source_of(flag) == Source::kList ? words.substr(1) : words;
}

std::string joined(const std::vector<std::string>& words, std::string_view between = " ") {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : std::string(between)) + word;
  return text;
}

// "--log-dir|--log_dir", "--tee|-t": a pattern of the shell's `case`.
std::string bash_pattern(const Flag& flag) {
  std::string pattern = "--" + std::string(flag.name);
  if (underscored(flag.name) != flag.name) pattern += "|--" + underscored(flag.name);
  return flag.letter == '\0' ? pattern : pattern + "|-" + flag.letter;
}

std::string bash_action(const Flag& flag) {
  switch (source_of(flag)) {
    case Source::kNone: return "COMPREPLY=()";
    case Source::kFiles: return "COMPREPLY=($(compgen -f -- \"$word\"))";
    case Source::kDirs: return "COMPREPLY=($(compgen -d -- \"$word\"))";
    case Source::kHosts: return "_ddprun_list \"$(_ddprun_hosts)\"";
    case Source::kList: return "_ddprun_list '" + words_of(flag) + "'";
    case Source::kWords: break;
  }
  return "COMPREPLY=($(compgen -W '" + words_of(flag) + "' -- \"$word\"))";
}

constexpr std::string_view kBashHead =
    R"(# ddprun completion for bash: source <(ddprun --print-completion bash)
_ddprun_hosts() {  # Those that ssh knows by name.
  sed -n 's/^\[\{0,1\}\([A-Za-z0-9_.-]\{1,\}\)[], ].*/\1/p' ~/.ssh/known_hosts 2> /dev/null |
    sort -u
}
_ddprun_list() {  # The last word of a list with commas.
  COMPREPLY=($(compgen -P "${word%"${word##*,}"}" -W "$1" -- "${word##*,}"))
}
_ddprun_doctor() {
  local flags='--hosts --ssh --env --nproc-per-node --port --color --ascii --json --verbose --help'
  case $previous in
    --hosts) _ddprun_list "$(_ddprun_hosts) " ;;
    --color) COMPREPLY=($(compgen -W 'auto always never' -- "$word")) ;;
    *) COMPREPLY=($(compgen -f -W "$flags" -- "$word")) ;;
  esac
}
_ddprun() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} i
  [[ $word == = ]] && word=  # bash takes --flag=value and a:b to pieces.
  [[ $previous == = ]] && previous=${COMP_WORDS[COMP_CWORD-2]}
  [[ ${COMP_WORDS[1]} == doctor && COMP_CWORD -gt 1 ]] && { _ddprun_doctor; return; }
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${COMP_WORDS[i]} in
)";

// What stands behind PROGRAM is PROGRAM's.
constexpr std::string_view kBashProgram = R"(
        [[ ${COMP_WORDS[i+1]} == = ]] && ((++i))
        ((++i))
        while [[ ${COMP_WORDS[i+1]} == : ]]; do ((i += 2)); done ;;
      --) COMPREPLY=($(compgen -f -- "$word")); return ;;
      -* | =) ;;
      *) COMPREPLY=($(compgen -f -- "$word")); return ;;
    esac
  done
  case $previous in
    :) COMPREPLY=(); return ;;
)";

std::string bash_script() {
  std::vector<std::string> patterns;
  std::string cases;
  for (const Flag& flag : all_flags()) {
    if (flag.value.empty()) continue;
    patterns.push_back(bash_pattern(flag));
    cases += "    " + patterns.back() + ") " + bash_action(flag) + "; return ;;\n";
  }
  return std::string(kBashHead) + "      " + joined(patterns, "|") + ")" +
         std::string(kBashProgram) + cases +
         "  esac\n"
         "  if [[ $word == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W '" +
         joined(flag_names()) +
         "' -- \"$word\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -f -c -W doctor -- \"$word\"))\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _ddprun ddprun\n";
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

std::string zsh_action(const Flag& flag) {
  switch (source_of(flag)) {
    case Source::kNone: return "";
    case Source::kFiles: return "_files";
    case Source::kDirs: return "_files -/";
    case Source::kHosts: return "_sequence _hosts";
    case Source::kList: return " _values -s , word " + words_of(flag);
    case Source::kWords: break;
  }
  return "(" + words_of(flag) + ")";
}

// One spelling of a flag; `before` is "!" for those that are understood and not offered.
std::string zsh_spec(const Flag& flag, const std::string& spelled, std::string_view before) {
  std::string spec = "    '" + std::string(before) + spelled;
  const bool is_long = spelled.starts_with("--");
  if (!flag.value.empty()) spec += is_long ? "=" : "+";
  if (before.empty()) spec += "[" + quoted_for_zsh(flag.help) + "]";
  if (!flag.value.empty()) spec += ":" + quoted_for_zsh(flag.value) + ":" + zsh_action(flag);
  return spec + "' \\\n";
}

std::string zsh_script() {
  std::string script =
      "#compdef ddprun\n"
      "# ddprun completion for zsh: source <(ddprun --print-completion zsh)\n"
      "_ddprun() {\n"
      "  _arguments -S -A '-*' \\\n";
  for (const Flag& flag : all_flags()) {
    const std::string name(flag.name);
    script += zsh_spec(flag, "--" + name, "");
    if (underscored(name) != name) script += zsh_spec(flag, "--" + underscored(name), "!");
    if (flag.letter != '\0') script += zsh_spec(flag, std::string("-") + flag.letter, "!");
  }
  return script +
         "    '(-)1:program:_files' '*::arguments:_files'\n"
         "}\n"
         "compdef _ddprun ddprun\n";
}

std::string tcsh_action(const Flag& flag) {
  switch (source_of(flag)) {
    case Source::kFiles: return "f";
    case Source::kDirs: return "d";
    case Source::kList:
    case Source::kWords: return "(" + words_of(flag) + ")";
    default: return "x:" + std::string(flag.value) + ":";
  }
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
    words += " \\\n  'n@" + spelled + "@" + tcsh_action(flag) + "@'";
  }
  return "# ddprun completion for tcsh: ddprun --print-completion tcsh > f; source f\n"
         "complete ddprun" +
         words + " \\\n  'c@--@(" + names + ")@' \\\n  'p@*@f@'\n";
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

bool is_known(std::string_view shell) {
  return shell == "bash" || shell == "zsh" || shell == "tcsh";
}

}  // namespace

std::string completion_script(std::string_view shell) {
  DDPRUN_ASSERT(is_known(shell));
  if (shell == "tcsh") return tcsh_script();
  return shell == "bash" ? bash_script() : zsh_script();
}

std::string ctl_completion_script(std::string_view shell, const std::vector<CtlVerb>& verbs) {
  DDPRUN_ASSERT(is_known(shell));
  if (shell == "tcsh") return ctl_for_tcsh(verbs);
  return shell == "bash" ? ctl_for_bash(verbs) : ctl_for_zsh(verbs);
}

}  // namespace ddprun::launcher
