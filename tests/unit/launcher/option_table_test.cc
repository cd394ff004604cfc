// Every row of a table of options is reachable from everywhere: help, manual page, completion, and,
// where a default makes sense, PET_* and the config file.

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <regex>
#include <sstream>

#include "common/options/completion.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/options/config_file.h"
#include "launcher/options/doctor_options.h"
#include "launcher/options/flags.h"
#include "launcher/options/help.h"
#include "launcher/options/replay_options.h"
#include "launcher/options/slurm_options.h"
#include "tests/support/command_line.h"

namespace ddprun::launcher {
namespace {

// Whether `name` is in `text`, and is not a part of a longer name.
bool mentions(const std::string& text, const std::string& name) {
  for (std::size_t at = 0; (at = text.find(name, at)) != std::string::npos; ++at) {
    const char next = at + name.size() < text.size() ? text[at + name.size()] : ' ';
    if (std::isalnum(static_cast<unsigned char>(next)) == 0 && next != '-' && next != '_') {
      return true;
    }
  }
  return false;
}

// The options that the page defines, without the backslashes of roff.
std::string manual(const std::string& page) {
  std::ifstream in("deploy/man/" + page);
  static const std::regex kFont(R"(\\f[BIR])");
  std::string text, line;
  while (std::getline(in, line)) {
    if (line.starts_with("\\fB")) text += std::regex_replace(line, kFont, " ") + "\n";
  }
  std::erase(text, '\\');
  return text;
}

// What an option needs or excludes.
std::vector<std::string> company(const Option& option) {
  if (option.name == "spares") return {"--max-restarts=1", "x"};
  if (option.name == "preload-keep") return {"--preload=auto", "x"};
  if (!option.needs.empty()) return {"--" + std::string(option.needs) + "=2", "x"};
  if (option.name == "host-discovery") return {"--nnodes=1:2", "x"};
  if (option.name == "hosts") return {"--nnodes=1", "x"};
  return {"x"};
}

// Any text that the option takes; empty: none was found.
std::string valid_value(const Option& option) {
  if (option.kind == Option::Kind::kSwitch) return "1";
  const auto offered = offered_words(option);
  if (!offered.empty()) return offered.front();
  for (const char* text : {"2", "2-3", "join_timeout=5", "train", "a,b", "SIGTERM"}) {
    std::vector<std::string> words = company(option);
    words.insert(words.begin(), long_name(option) + "=" + text);
    if (parse_words(words)) return text;
  }
  return "";
}

// The value that was parsed for the option, "(not given)", or the error.
std::string given(const Result<ParseOutcome>& outcome, const Option& option) {
  if (!outcome) return outcome.error().context;
  for (const GivenOption& one : std::get<Options>(*outcome).given) {
    if (one.flag == long_name(option)) return one.value.value_or("1");
  }
  return "(not given)";
}

TEST_CASE("Option table: every row of ddprun is in help, manual and completion", "[options]") {
  const std::string help = help_text(Flags::kAll), page = manual("ddprun.1");
  for (const Option& option : all_options()) {
    INFO(option.name);
    CHECK(mentions(help, long_name(option)));
    CHECK(help.find(option.help) != std::string::npos);
    CHECK(mentions(page, long_name(option)));
    for (const std::string& shell :
         offered_words(*find_option(all_options(), "print-completion"))) {
      const std::string script =
          std::get<PrintAndExit>(parse_words({"--print-completion", shell}).value()).text;
      CHECK(mentions(script, shell == "tcsh" ? std::string(option.name) : long_name(option)));
    }
  }
}

TEST_CASE("Option table: every row of ddprun is taken from argv, PET and the config file",
          "[options]") {
  for (const Option& option : all_options()) {
    if (option.kind == Option::Kind::kPrint) continue;
    const std::string value = valid_value(option), name(option.name);
    INFO(name << " = " << value);
    REQUIRE_FALSE(value.empty());
    std::vector<std::string> words = company(option);
    CHECK(given(parse_words(words, {{pet_variable(name), value}}), option) == value);
    if (!option.variable.empty()) {
      CHECK(given(parse_words(words, {{std::string(option.variable), value}}), option) == value);
    }
    const auto config = parse_config(name + " = " + value, "f");
    CHECK(config.has_value() != option.of_one_run);
    if (config) CHECK(given(parse_words(words, with_config({}, *config)), option) == value);
    words.insert(words.begin(), "--" + underscored(name) + "=" + value);
    CHECK(given(parse_words(words), option) == value);
  }
}

TEST_CASE("Option table: ddprun takes every word that completion offers", "[options]") {
  for (const Option& option : all_options()) {
    if (option.kind == Option::Kind::kPrint) continue;
    for (const std::string& word : offered_words(option)) {
      INFO(option.name << " " << word);
      CHECK(given(parse_words({long_name(option), word, "x"}), option) == word);
    }
  }
}

Result<DoctorOutcome> doctor(const std::vector<std::string>& words) {
  std::vector<const char*> argv = {"doctor"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  return parse_doctor(static_cast<int>(argv.size()), argv.data());
}

TEST_CASE("Option table: the doctor's far end reads any memory folder that it is given",
          "[options]") {
  for (const char* size : {"1M", "999999K", "1G", "1536M", "64G", "2T"}) {
    INFO(size);
    const auto given = doctor({"--memory-folder", size, "--hosts", "a"});
    const auto& options = std::get<DoctorOptions>(given.value());
    const std::vector<std::string> words = far_end_argv(options);
    const auto far = doctor({words.begin() + 2, words.end()});
    REQUIRE(far.has_value());
    CHECK(std::get<DoctorOptions>(*far).memory_folder.bytes == options.memory_folder.bytes);
  }
}

TEST_CASE("Option table: every row of doctor is in help, manual and completion", "[options]") {
  const std::string help = std::get<PrintAndExit>(doctor({"--help"}).value()).text;
  const std::string page = manual("ddprun-doctor.1");
  for (const Option& option : doctor_options()) {
    INFO(option.name);
    const std::string name = option.positional ? std::string(option.name) : long_name(option);
    CHECK(mentions(help, name) != option.hidden);
    if (!option.hidden) CHECK(help.find(option.help) != std::string::npos);
    if (option.positional || option.hidden) continue;
    CHECK(mentions(page, name));
    for (const char* shell : {"bash", "zsh", "tcsh"}) {
      const std::string script =
          std::get<PrintAndExit>(parse_words({"--print-completion", shell}).value()).text;
      const bool one_list = shell == std::string("tcsh");
      const std::string part = one_list ? script : script.substr(script.find("doctor"));
      CHECK(mentions(part, one_list ? std::string(option.name) : name));
    }
    for (const std::string& word : offered_words(option)) CHECK(doctor({name, word}));
  }
}

TEST_CASE("Option table: every row of slurm is in help, manual and completion", "[options]") {
  const char* argv[] = {"slurm", "--help"};
  const std::string help = std::get<PrintAndExit>(parse_slurm(2, argv, {}).value()).text;
  const std::string page = manual("ddprun-slurm.1");
  for (const Option& option : slurm_options()) {
    INFO(option.name);
    CHECK(mentions(help, long_name(option)));
    CHECK(mentions(page, long_name(option)));
    for (const char* shell : {"bash", "zsh"}) {
      const std::string script =
          std::get<PrintAndExit>(parse_words({"--print-completion", shell}).value()).text;
      CHECK(mentions(script.substr(script.find("slurm")), long_name(option)));
    }
  }
}

TEST_CASE("Option table: every row of replay is in help, manual and completion", "[options]") {
  const char* argv[] = {"replay", "--help"};
  const std::string help = std::get<PrintAndExit>(parse_replay(2, argv).value()).text;
  const std::string page = manual("ddprun-replay.1");
  for (const Option& option : replay_options()) {
    INFO(option.name);
    CHECK(help.find(option.help) != std::string::npos);
    if (option.positional) continue;
    CHECK(mentions(help, long_name(option)));
    CHECK(mentions(page, long_name(option)));
    for (const char* shell : {"bash", "zsh"}) {
      const std::string script =
          std::get<PrintAndExit>(parse_words({"--print-completion", shell}).value()).text;
      CHECK(mentions(script.substr(script.find("replay")), long_name(option)));
    }
  }
}

Result<CtlOutcome> ctl(const std::vector<std::string>& words) {
  std::vector<const char*> argv = {"ddprunctl"};
  for (const std::string& word : words) argv.push_back(word.c_str());
  return parse_ctl(static_cast<int>(argv.size()), argv.data(), {{"DDPRUN_TOKEN", "t"}});
}

std::string ctl_prints(const std::vector<std::string>& words) {
  return std::get<PrintAndExit>(ctl(words).value()).text;
}

// The positional arguments that the command needs.
std::vector<std::string> with_arguments(const CommandSpec& command) {
  std::vector<std::string> words = {std::string(command.name)};
  for (const Option& option : command.options) {
    if (option.positional && option.required) words.push_back("2");
  }
  return words;
}

TEST_CASE("Option table: every row of ddprunctl is in manual and completion, and is taken",
          "[options]") {
  const std::string page = manual("ddprunctl.1"), help = ctl_prints({"--help"});
  std::vector<CommandSpec> commands = ctl_commands();
  for (const CommandSpec& command : commands) {
    INFO(command.name);
    CHECK(mentions(help, std::string(command.name)));
    CHECK(help.find(command.help) != std::string::npos);
    CHECK(page.find(" " + std::string(command.name) + " ") != std::string::npos);
  }
  for (const Option& option : ctl_options()) CHECK(mentions(help, long_name(option)));
  commands.push_back({"status", "", ctl_options()});
  for (const CommandSpec& command : commands) {
    for (const Option& option : command.options) {
      INFO(command.name << " " << option.name);
      if (option.positional) continue;
      CHECK(mentions(page, long_name(option)));
      for (const char* shell : {"bash", "zsh", "tcsh"}) {
        const std::string script = ctl_prints({"--print-completion", shell});
        const bool one_list = shell == std::string("tcsh");
        CHECK(mentions(script, one_list ? std::string(option.name) : long_name(option)));
      }
      std::vector<std::string> words = with_arguments(command);
      words.push_back(long_name(option));
      if (takes_value(option)) {
        const auto offered = offered_words(option);
        words.push_back(offered.empty() ? "2" : offered.front());
      }
      if (option.name == "address") words.back() = "127.0.0.1:28028";
      const auto outcome = ctl(words);
      CHECK((outcome ? "" : outcome.error().context) == "");
    }
  }
}

}  // namespace
}  // namespace ddprun::launcher
