#include "launcher/options/config_file.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "launcher/options/flags.h"
#include "launcher/options/suggest.h"

namespace ddprun::launcher {
namespace {

// Of one run, or of one node: as a default for all of them they can only do harm.
constexpr std::array<std::string_view, 5> kOfOneRun = {"dry-run", "node-rank", "local-addr",
                                                       "print-completion", "rdzv-id"};

// Other variables that say the same as a flag.
struct SameAs {
  std::string_view flag;
  std::string_view variable;
};
constexpr SameAs kSameAs[] = {
    {"rdzv-endpoint", "DDPRUN_ENDPOINT"},
    {"token-file", "DDPRUN_TOKEN"},
    {"token-file", "DDPRUN_TOKEN_FILE"},
    {"shutdown-timeout", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"},
    {"log-line-prefix-template", "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE"},
};

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

bool is_said_elsewhere(const Environment& environment, const std::string& flag) {
  if (!value_of(environment, pet_variable(flag)).empty()) return true;
  return std::any_of(std::begin(kSameAs), std::end(kSameAs), [&](const SameAs& same) {
    return same.flag == flag && !value_of(environment, same.variable).empty();
  });
}

Failure wrong(const std::string& file, int line, const std::string& what) {
  return {Errc::kBadOption, file + ":" + std::to_string(line) + ": " + what};
}

Result<void> read_line(std::string_view line, int number, Config& config) {
  const std::size_t equals = line.find('=');
  if (equals == std::string_view::npos) {
    return wrong(config.file, number, "is not FLAG = VALUE, such as max-restarts = 3");
  }
  std::string name(trimmed(line.substr(0, equals)));
  std::replace(name.begin(), name.end(), '_', '-');
  if (name.starts_with("--")) name.erase(0, 2);
  const Flag* flag = find_flag(name);
  if (flag == nullptr) {
    return wrong(
        config.file, number,
        "unknown flag '" + name.substr(0, 60) + "'" + did_you_mean("--" + name, flag_names()));
  }
  const auto end = kOfOneRun.end();
  if (flag->kind == Flag::Kind::kPrint || std::find(kOfOneRun.begin(), end, name) != end) {
    return wrong(config.file, number, name + " cannot be a default for all runs");
  }
  const std::string value(trimmed(line.substr(equals + 1)));
  if (value.empty()) return wrong(config.file, number, name + " has no value");
  if (!config.entries.emplace(name, Config::Entry{value, number}).second) {
    return wrong(config.file, number, name + " is given twice");
  }
  return {};
}

}  // namespace

Result<Config> parse_config(std::string_view text, const std::string& file) {
  Config config{.file = file, .entries = {}};
  if (text.size() > kConfigBytesMax) {
    return Failure{Errc::kBadOption, file + " is longer than 64 KiB"};
  }
  for (int number = 1; !text.empty(); ++number) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trimmed(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line.front() == '#') continue;
    if (line.find('\0') != std::string_view::npos) {
      return wrong(file, number, "is not text");
    }
    if (const auto read = read_line(line, number, config); !read) return read.error();
  }
  return config;
}

std::string config_path(const Environment& environment) {
  const auto named = environment.find("DDPRUN_CONFIG");
  if (named != environment.end()) return named->second;
  std::string folder = value_of(environment, "XDG_CONFIG_HOME");
  if (!folder.starts_with('/')) {
    folder = value_of(environment, "HOME");
    if (!folder.starts_with('/')) return "";
    folder += "/.config";
  }
  return folder + "/ddprun/config";
}

Result<Config> read_config_file(const std::string& path, const Environment& environment) {
  if (path.empty()) return Config();
  const bool named = !value_of(environment, "DDPRUN_CONFIG").empty();
  std::ifstream in(path, std::ios::binary);
  // Nobody has to have one, nor a home that this user may look into.
  if (!in && !named) return Config();
  std::string text(kConfigBytesMax + 1, '\0');
  if (in) in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.eof() && in.fail()) {
    const std::string why = std::strerror(errno);
    return Failure{Errc::kBadOption,
                   (named ? "DDPRUN_CONFIG '" : "'") + path + "' cannot be read: " + why};
  }
  text.resize(static_cast<std::size_t>(in.gcount()));
  return parse_config(text, path);
}

Environment with_config(Environment environment, const Config& config) {
  const Environment given = environment;
  for (const auto& [flag, entry] : config.entries) {
    if (!is_said_elsewhere(given, flag)) environment[pet_variable(flag)] = entry.value;
  }
  return environment;
}

std::string explained(const std::string& error, const Config& config,
                      const Environment& environment) {
  for (const auto& [flag, entry] : config.entries) {
    const std::string variable = pet_variable(flag);
    if (is_said_elsewhere(environment, flag) || !error.starts_with(variable + " ")) continue;
    return config.file + ":" + std::to_string(entry.line) + ": " + flag +
           error.substr(variable.size());
  }
  return error;
}

}  // namespace ddprun::launcher
