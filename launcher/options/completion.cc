#include "launcher/options/completion.h"

#include <algorithm>
#include <iterator>

#include "common/assert.h"
#include "launcher/options/flags.h"

namespace ddprun::launcher {
namespace {

// The source of the words for a value.
enum class Source {
  kNone,   // Any value; no words.
  kFiles,  // "@file"
  kDirs,   // "@dir"
  kHosts,  // "@hosts": a comma-separated list of hosts.
  kList,   // ",a b": a comma-separated list of these words.
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

using Kind = Flag::Kind;

// The flags of `ddprun doctor`, which are others; launcher/doctor reads them.
constexpr Flag kDoctorFlags[] = {
    {"", "hosts", '\0', Kind::kValue, "HOST[:N],...", "@hosts", "Check these hosts by ssh"},
    {"", "ssh", '\0', Kind::kValue, "COMMAND", "", "ssh command for --hosts"},
    {"", "env", '\0', Kind::kValue, "NAME,...", "", "Further variables that --hosts transfers"},
    {"", "nproc-per-node", '\0', Kind::kValue, "N", "auto gpu cpu", "Workers on each node"},
    {"", "port", '\0', Kind::kValue, "PORT", "", "Where the nodes meet"},
    {"", "color", '\0', Kind::kValue, "WHEN", "auto always never", "When to use colours"},
    {"", "ascii", '\0', Kind::kSwitch, "", "", "Print ASCII characters only"},
    {"", "json", '\0', Kind::kSwitch, "", "", "As JSON"},
    {"", "verbose", 'v', Kind::kSwitch, "", "", "List the good checks of several nodes, too"},
    {"", "help", 'h', Kind::kPrint, "", "", "Print help"},
};

// A pattern for the shell's `case`: "--log-dir|--log_dir", "--tee|-t".
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

constexpr std::string_view kBashHosts =
    R"(# ddprun completion for bash: source <(ddprun --print-completion bash)
_ddprun_hosts() {  # Those that ssh knows by name.
  sed -n 's/^\[\{0,1\}\([A-Za-z0-9_.-]\{1,\}\)[], ].*/\1/p' ~/.ssh/known_hosts 2> /dev/null |
    sort -u
}
_ddprun_list() {  # The last word of a list with commas.
  COMPREPLY=($(compgen -P "${word%"${word##*,}"}" -W "$1" -- "${word##*,}"))
}
)";

constexpr std::string_view kBashHead =
    R"(_ddprun() {
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} i
  [[ $word == = ]] && word=  # bash takes --flag=value and a:b to pieces.
  [[ $previous == = ]] && previous=${COMP_WORDS[COMP_CWORD-2]}
  [[ ${COMP_WORDS[1]} == doctor && COMP_CWORD -gt 1 ]] && { _ddprun_doctor; return; }
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case ${COMP_WORDS[i]} in
)";

// Words behind PROGRAM are PROGRAM's.
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

// The words behind `doctor`.
std::string bash_doctor() {
  std::string cases, flags;
  for (const Flag& flag : kDoctorFlags) {
    flags += (flags.empty() ? "--" : " --") + std::string(flag.name);
    if (flag.value.empty()) continue;
    cases += "    " + bash_pattern(flag) + ") " + bash_action(flag) + "; return ;;\n";
  }
  return "_ddprun_doctor() {\n  case $previous in\n" + cases +
         "  esac\n  COMPREPLY=($(compgen -f -W '" + flags + "' -- \"$word\"))\n}\n";
}

std::string bash_script() {
  std::vector<std::string> patterns;
  std::string cases;
  for (const Flag& flag : all_flags()) {
    if (flag.value.empty()) continue;
    patterns.push_back(bash_pattern(flag));
    cases += "    " + patterns.back() + ") " + bash_action(flag) + "; return ;;\n";
  }
  return std::string(kBashHosts) + bash_doctor() + std::string(kBashHead) + "      " +
         joined(patterns, "|") + ")" + std::string(kBashProgram) + cases +
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

// One spelling of a flag; `before` is "!" for spellings that are understood, but not offered.
std::string zsh_spec(const Flag& flag, const std::string& spelled, std::string_view before) {
  std::string spec = "    '" + std::string(before) + spelled;
  const bool is_long = spelled.starts_with("--");
  if (!flag.value.empty()) spec += is_long ? "=" : "+";
  if (before.empty()) spec += "[" + quoted_for_zsh(flag.help) + "]";
  if (!flag.value.empty()) spec += ":" + quoted_for_zsh(flag.value) + ":" + zsh_action(flag);
  return spec + "' \\\n";
}

std::string zsh_specs(std::span<const Flag> flags) {
  std::string specs;
  for (const Flag& flag : flags) {
    const std::string name(flag.name);
    specs += zsh_spec(flag, "--" + name, "");
    if (underscored(name) != name) specs += zsh_spec(flag, "--" + underscored(name), "!");
    if (flag.letter != '\0') specs += zsh_spec(flag, std::string("-") + flag.letter, "!");
  }
  return specs;
}

std::string zsh_script() {
  return "#compdef ddprun\n"
         "# ddprun completion for zsh: source <(ddprun --print-completion zsh)\n"
         "_ddprun() {\n"
         "  if (( CURRENT > 2 )) && [[ $words[2] == doctor ]]; then\n"
         "    shift words; (( CURRENT-- ))\n"
         "    _arguments -S \\\n" +
         zsh_specs(kDoctorFlags) +
         "    '1:program:_files'\n"
         "    return\n"
         "  fi\n"
         "  _arguments -S -A '-*' \\\n" +
         zsh_specs(all_flags()) +
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

// tcsh has one line for everything: the words behind flags that have them, then the flags
// themselves, and those that only doctor has.
std::string tcsh_script() {
  std::string names, words;
  std::vector<Flag> flags(all_flags().begin(), all_flags().end());
  std::copy_if(std::begin(kDoctorFlags), std::end(kDoctorFlags), std::back_inserter(flags),
               [](const Flag& flag) { return find_flag(flag.name) == nullptr; });
  for (const Flag& flag : flags) {
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

bool is_known(std::string_view shell) {
  return shell == "bash" || shell == "zsh" || shell == "tcsh";
}

}  // namespace

std::string completion_script(std::string_view shell) {
  DDPRUN_ASSERT(is_known(shell));
  if (shell == "tcsh") return tcsh_script();
  return shell == "bash" ? bash_script() : zsh_script();
}

}  // namespace ddprun::launcher
