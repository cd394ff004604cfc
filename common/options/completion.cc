#include "common/options/completion.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <set>
#include <sstream>

namespace ddprun {
namespace {

// The source of the words for a value.
enum class Source {
  kNone,   // Any value; no words.
  kFiles,  // "@file", or a value that is called FILE
  kDirs,   // "@dir", or DIR
  kHosts,  // A value that is called HOST[:N],...: a comma-separated list of hosts.
  kList,   // ",a b": a comma-separated list of these words.
  kWords,  // One of these words.
};

struct Choices {
  Source source = Source::kNone;
  std::string words = "";
};

// "N|auto|gpu" -> "auto gpu": words that are typed literally begin with a small letter.
std::string literal_words(std::string_view value) {
  std::string words;
  while (!value.empty()) {
    const std::size_t end = std::min(value.find('|'), value.size());
    if (std::islower(static_cast<unsigned char>(value.front())) != 0) {
      words += (words.empty() ? "" : " ") + std::string(value.substr(0, end));
    }
    value.remove_prefix(std::min(end + 1, value.size()));
  }
  return words;
}

Choices choices_of(const Option& option) {
  const std::string_view words = option.words;
  if (words == "@file" || (words.empty() && option.value == "FILE")) return {Source::kFiles};
  if (words == "@dir" || (words.empty() && option.value == "DIR")) return {Source::kDirs};
  if (words.empty() && option.value == "HOST[:N],...") return {Source::kHosts};
  if (words.starts_with(',')) return {Source::kList, std::string(words.substr(1))};
  const std::string one_of = words.empty() ? literal_words(option.value) : std::string(words);
  return one_of.empty() ? Choices{} : Choices{Source::kWords, one_of};
}

std::vector<Option> offered(std::span<const Option> options) {
  std::vector<Option> shown;
  std::ranges::copy_if(options, std::back_inserter(shown),
                       [](const Option& option) { return !option.hidden && !option.positional; });
  return shown;
}

// "--log-dir --tee"; `dashes` are put before each name.
std::string names_of(std::span<const Option> options, std::string_view dashes = "--") {
  std::string names;
  for (const Option& option : options) {
    names += (names.empty() ? "" : " ") + std::string(dashes) + std::string(option.name);
  }
  return names;
}

// A pattern for the shell's `case`: "--log-dir|--log_dir", "--tee|-t".
std::string bash_pattern(const Option& option) {
  std::string pattern = long_name(option);
  if (underscored(option.name) != option.name) pattern += "|--" + underscored(option.name);
  return option.letter == '\0' ? pattern : pattern + "|-" + option.letter;
}

std::string bash_action(const Option& option) {
  const auto [source, words] = choices_of(option);
  switch (source) {
    case Source::kNone: return "COMPREPLY=()";
    case Source::kFiles: return "COMPREPLY=($(compgen -f -- \"$word\"))";
    case Source::kDirs: return "COMPREPLY=($(compgen -d -- \"$word\"))";
    case Source::kHosts: return "_ddprun_list \"$(_ddprun_hosts)\"";
    case Source::kList: return "_ddprun_list '" + words + "'";
    case Source::kWords: break;
  }
  return "COMPREPLY=($(compgen -W '" + words + "' -- \"$word\"))";
}

// The words behind options that take a value.
std::string bash_cases(std::span<const Option> options) {
  std::string cases;
  for (const Option& option : options) {
    if (!takes_value(option)) continue;
    cases += "    " + bash_pattern(option) + ") " + bash_action(option) + "; return ;;\n";
  }
  return cases;
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
  local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} i first=1
  [[ $word == = ]] && word=  # bash takes --flag=value and a:b to pieces.
  [[ $previous == = ]] && previous=${COMP_WORDS[COMP_CWORD-2]}
  if [[ COMP_CWORD -gt 1 ]]; then
    case ${COMP_WORDS[1]} in
)";

constexpr std::string_view kBashWords = R"(    esac
  fi
  for ((i = first; i < COMP_CWORD; ++i)); do
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

// The words behind a command such as `doctor`.
std::string bash_function(const CommandSpec& command) {
  const std::vector<Option> options = offered(command.options);
  return "_ddprun_" + std::string(command.name) + "() {\n  case $previous in\n" +
         bash_cases(options) + "  esac\n  COMPREPLY=($(compgen -f -W '" + names_of(options) +
         "' -- \"$word\"))\n}\n";
}

// The branch of the shell's `case` for a command.
std::string bash_branch(const CommandSpec& command) {
  const std::string name(command.name), call = "_ddprun_" + name + "; return";
  if (!command.until_dashes) return "      " + name + ") " + call + " ;;\n";
  return "      " + name +
         ")\n"
         "        for ((i = 2; i < COMP_CWORD; ++i)); do\n"
         "          [[ ${COMP_WORDS[i]} == -- ]] && { first=$((i + 1)); break; }\n"
         "        done\n"
         "        ((first == 1)) && { " +
         call + "; } ;;\n";
}

// "doctor slurm".
std::string command_names(const ProgramSpec& program) {
  std::string names;
  for (const CommandSpec& command : program.commands) {
    names += (names.empty() ? "" : " ") + std::string(command.name);
  }
  return names;
}

std::string for_bash(std::span<const Option> options, const ProgramSpec& program) {
  std::string patterns, functions, calls;
  for (const Option& option : options) {
    if (takes_value(option)) patterns += (patterns.empty() ? "" : "|") + bash_pattern(option);
  }
  for (const CommandSpec& command : program.commands) {
    functions += bash_function(command);
    calls += bash_branch(command);
  }
  return std::string(kBashHosts) + functions + std::string(kBashHead) + calls +
         std::string(kBashWords) + "      " + patterns + ")" + std::string(kBashProgram) +
         bash_cases(options) +
         "  esac\n"
         "  if [[ $word == -* ]]; then\n"
         "    COMPREPLY=($(compgen -W '" +
         names_of(options) +
         "' -- \"$word\"))\n"
         "  else\n"
         "    COMPREPLY=($(compgen -f -c -W '" +
         command_names(program) +
         "' -- \"$word\"))\n"
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

std::string zsh_action(const Option& option) {
  const auto [source, words] = choices_of(option);
  switch (source) {
    case Source::kNone: return "";
    case Source::kFiles: return "_files";
    case Source::kDirs: return "_files -/";
    case Source::kHosts: return "_sequence _hosts";
    case Source::kList: return " _values -s , word " + words;
    case Source::kWords: break;
  }
  return "(" + words + ")";
}

// One spelling of an option; `before` is "!" for spellings that are understood, but not offered.
std::string zsh_spec(const Option& option, const std::string& spelled, std::string_view before) {
  std::string spec = "    '" + std::string(before) + spelled;
  const bool is_long = spelled.starts_with("--");
  if (takes_value(option)) spec += is_long ? "=" : "+";
  if (before.empty()) spec += "[" + quoted_for_zsh(option.help) + "]";
  if (takes_value(option)) spec += ":" + quoted_for_zsh(option.value) + ":" + zsh_action(option);
  return spec + "' \\\n";
}

std::string zsh_specs(std::span<const Option> options) {
  std::string specs;
  for (const Option& option : options) {
    const std::string name(option.name);
    specs += zsh_spec(option, "--" + name, "");
    if (underscored(name) != name) specs += zsh_spec(option, "--" + underscored(name), "!");
    if (option.letter != '\0') specs += zsh_spec(option, std::string("-") + option.letter, "!");
  }
  return specs;
}

std::string zsh_branch(const CommandSpec& command) {
  const bool one_program = std::ranges::any_of(command.options, &Option::positional);
  const std::string name(command.name);
  const std::string dashes =
      !command.until_dashes ? "  "
                            : "  if (( ${words[(i)--]} < CURRENT )) && [[ $words[2] == " + name +
                                  " ]]; then\n"
                                  "    local dashes=${words[(i)--]}\n"
                                  "    shift $(( dashes - 1 )) words; (( CURRENT -= dashes - 1 ))\n"
                                  "  el";
  return dashes + "if (( CURRENT > 2 )) && [[ $words[2] == " + name +
         " ]]; then\n"
         "    shift words; (( CURRENT-- ))\n"
         "    _arguments -S \\\n" +
         zsh_specs(offered(command.options)) +
         (one_program ? "    '1:program:_files'\n" : "    '*:argument:_files'\n") +
         "    return\n"
         "  fi\n";
}

std::string for_zsh(std::span<const Option> options, const ProgramSpec& program) {
  std::string branches;
  for (const CommandSpec& command : program.commands) branches += zsh_branch(command);
  return "#compdef ddprun\n"
         "# ddprun completion for zsh: source <(ddprun --print-completion zsh)\n"
         "_ddprun() {\n" +
         branches + "  _arguments -S -A '-*' \\\n" + zsh_specs(options) +
         "    '(-)1:program:_files' '*::arguments:_files'\n"
         "}\n"
         "compdef _ddprun ddprun\n";
}

std::string tcsh_action(const Option& option) {
  const auto [source, words] = choices_of(option);
  switch (source) {
    case Source::kFiles: return "f";
    case Source::kDirs: return "d";
    case Source::kList:
    case Source::kWords: return "(" + words + ")";
    default: return "x:" + std::string(option.value) + ":";
  }
}

// The words behind options that take a value.
std::string tcsh_words(std::span<const Option> options) {
  std::string words;
  for (const Option& option : options) {
    if (!takes_value(option)) continue;
    const std::string name = long_name(option), other = "--" + underscored(option.name);
    const std::string spelled = other == name ? name : "{" + name + "," + other + "}";
    words += " \\\n  'n@" + spelled + "@" + tcsh_action(option) + "@'";
  }
  return words;
}

// tcsh has one line for everything: the words behind options that have them, then the options
// themselves, and those that only a command has.
std::string for_tcsh(std::span<const Option> options, const ProgramSpec& program) {
  std::vector<Option> all(options.begin(), options.end());
  for (const CommandSpec& command : program.commands) {
    std::ranges::copy_if(offered(command.options), std::back_inserter(all),
                         [&](const Option& option) { return !find_option(all, option.name); });
  }
  return "# ddprun completion for tcsh: ddprun --print-completion tcsh > f; source f\n"
         "complete ddprun" +
         tcsh_words(all) + " \\\n  'c@--@(" + names_of(all, "") + ")@' \\\n  'p@*@f@'\n";
}

// Programs that start no other, such as ddprunctl.

// Each option with words or files for its value, once, whichever command has it.
std::vector<Option> options_with_choices(const ProgramSpec& program) {
  std::vector<Option> found;
  const auto add = [&](std::span<const Option> options) {
    std::ranges::copy_if(offered(options), std::back_inserter(found), [&](const Option& option) {
      return choices_of(option).source != Source::kNone && !find_option(found, option.name);
    });
  };
  add(program.options);
  for (const CommandSpec& command : program.commands) add(command.options);
  return found;
}

// A `case` of the shell per command: its options.
std::string command_cases(const ProgramSpec& program, std::string_view before) {
  std::string cases;
  for (const CommandSpec& command : program.commands) {
    const std::string own = names_of(offered(command.options));
    cases += "      " + std::string(command.name) + ") " + std::string(before) + "flags='--help" +
             (own.empty() ? "" : " " + own) + "' ;;\n";
  }
  return cases;
}

std::string commands_for_bash(const ProgramSpec& program) {
  const std::string& name = program.name;
  return "# " + name + " completion for bash: source <(" + name +
         " --print-completion bash)\n"
         "_" +
         name +
         "() {\n"
         "  local word=${COMP_WORDS[COMP_CWORD]} i flags='' verbs='" +
         command_names(program) +
         "'\n"
         "  case ${COMP_WORDS[COMP_CWORD-1]} in\n" +
         bash_cases(options_with_choices(program)) +
         "  esac\n"
         "  for ((i = 1; i < COMP_CWORD; ++i)); do\n"
         "    case ${COMP_WORDS[i]} in\n" +
         command_cases(program, "verbs= ") +
         "    esac\n"
         "  done\n"
         "  [[ $word == -* ]] && verbs=\"$flags " +
         names_of(offered(program.options)) +
         "\"\n"
         "  COMPREPLY=($(compgen -W \"$verbs\" -- \"$word\"))\n"
         "}\n"
         "complete -F _" +
         name + " " + name + "\n";
}

std::string commands_for_zsh(const ProgramSpec& program) {
  const std::string& name = program.name;
  return "#compdef " + name + "\n# " + name + " completion for zsh: source <(" + name +
         " --print-completion zsh)\n"
         "_" +
         name +
         "() {\n"
         "  local verb flags=\n"
         "  for verb in $words[2,CURRENT-1]; do\n"
         "    case $verb in\n" +
         command_cases(program, "") +
         "    esac\n"
         "  done\n"
         "  if [[ $words[CURRENT] == -* ]]; then\n"
         "    compadd -- ${=flags} " +
         names_of(offered(program.options)) +
         "\n"
         "  elif [[ -z $flags ]]; then\n"
         "    compadd -- " +
         command_names(program) +
         "\n"
         "  else\n"
         "    _files\n"
         "  fi\n"
         "}\n"
         "compdef _" +
         name + " " + name + "\n";
}

std::string commands_for_tcsh(const ProgramSpec& program) {
  std::set<std::string_view> names = {"help"};
  for (const Option& option : program.options) names.insert(option.name);
  for (const CommandSpec& command : program.commands) {
    for (const Option& option : offered(command.options)) names.insert(option.name);
  }
  std::string all;
  for (const std::string_view name : names) all += (all.empty() ? "" : " ") + std::string(name);
  const std::string& name = program.name;
  return "# " + name + " completion for tcsh: " + name +
         " --print-completion tcsh > f; source f\ncomplete " + name +
         tcsh_words(options_with_choices(program)) + " \\\n  'c@--@(" + all + ")@' \\\n  'p@*@(" +
         command_names(program) + ")@'\n";
}

}  // namespace

std::vector<std::string> offered_words(const Option& option) {
  std::istringstream words(choices_of(option).words);
  return {std::istream_iterator<std::string>(words), {}};
}

Result<std::string> completion_script(std::string_view shell, const ProgramSpec& program) {
  if (!program.starts_program) {
    if (shell == "bash") return commands_for_bash(program);
    if (shell == "zsh") return commands_for_zsh(program);
    if (shell == "tcsh") return commands_for_tcsh(program);
  } else {
    const std::vector<Option> options = offered(program.options);
    if (shell == "bash") return for_bash(options, program);
    if (shell == "zsh") return for_zsh(options, program);
    if (shell == "tcsh") return for_tcsh(options, program);
  }
  return usage("--print-completion '" + std::string(shell) + "': give bash, zsh or tcsh");
}

}  // namespace ddprun
