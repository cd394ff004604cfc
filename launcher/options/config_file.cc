#include "launcher/options/config_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <sstream>

#include "launcher/options/flags.h"
#include "launcher/options/help.h"
#include "launcher/options/option_values.h"

namespace ddprun::launcher {
namespace {

std::string_view trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  const std::size_t first = text.find_first_not_of(kSpace);
  if (first == std::string_view::npos) return "";
  return text.substr(first, text.find_last_not_of(kSpace) - first + 1);
}

bool is_given_elsewhere(const Environment& environment, const Option& option) {
  const auto is_set = [&](std::string_view name) { return !value_of(environment, name).empty(); };
  if (is_set(pet_variable(option.name)) || is_set(option.variable)) return true;
  std::istringstream settled_by{std::string(option.settled_by)};
  using Words = std::istream_iterator<std::string>;
  return std::any_of(Words(settled_by), Words(), is_set);
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
  const Option* option = find_option(all_options(), name);
  if (option == nullptr) {
    return wrong(
        config.file, number,
        "unknown flag '" + name.substr(0, 60) + "'" + did_you_mean("--" + name, option_names()));
  }
  if (option->kind == Option::Kind::kPrint || option->of_one_run) {
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
  // The file is optional, and the user may have no readable home.
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
    const Option& option = *find_option(all_options(), flag);
    if (!is_given_elsewhere(given, option)) environment[pet_variable(flag)] = entry.value;
  }
  return environment;
}

std::string explained(const std::string& error, const Config& config,
                      const Environment& environment) {
  for (const auto& [flag, entry] : config.entries) {
    const std::string variable = pet_variable(flag);
    const Option& option = *find_option(all_options(), flag);
    if (is_given_elsewhere(environment, option) || !error.starts_with(variable + " ")) continue;
    return config.file + ":" + std::to_string(entry.line) + ": " + flag +
           error.substr(variable.size());
  }
  return error;
}

// --rdzv-conf k=v,k=v: parse_rdzv_conf of option_values.h. torchrun passes unknown keys on
// silently, so that a mistyped join_timeout waits ten minutes; here every key is known or refused.

namespace {

constexpr std::size_t kBytesMax = 4'096;

constexpr const char* kMoreThanZero = "give more than 0 seconds";

struct TimeKey {
  std::string_view name;
  std::optional<Milliseconds> RdzvConf::*member;
  bool may_be_zero = false;
};

constexpr TimeKey kTimeKeys[] = {
    {"join_timeout", &RdzvConf::join_timeout},
    {"last_call_timeout", &RdzvConf::last_call_timeout, true},
    {"close_timeout", &RdzvConf::close_timeout, true},
    {"heartbeat_timeout", &RdzvConf::heartbeat_timeout},
    {"heartbeat_interval", &RdzvConf::heartbeat_interval},
    {"standstill_timeout", &RdzvConf::standstill_timeout, true},
    {"read_timeout", &RdzvConf::read_timeout},
    {"fence_timeout", &RdzvConf::fence_timeout, true},
};

const std::vector<std::string> kKeys = {"join_timeout",
                                        "last_call_timeout",
                                        "close_timeout",
                                        "heartbeat_timeout",
                                        "heartbeat_interval",
                                        "standstill_timeout",
                                        "keep_alive_interval",
                                        "keep_alive_max_attempt",
                                        "read_timeout",
                                        "fence_timeout",
                                        "timeout",
                                        "is_host",
                                        "auth",
                                        "join",
                                        "store_users",
                                        "store_type",
                                        "use_libuv"};

std::string known_keys() {
  std::string text;
  for (const std::string& key : kKeys) text += (text.empty() ? "; keys are " : ", ") + key;
  return text;
}

// torchrun's keys that only mean something together with others.
struct TorchrunKeys {
  std::optional<Milliseconds> keep_alive_interval;
  std::optional<Milliseconds> timeout;  // The static backend's name for join_timeout.
  std::optional<int> keep_alive_attempts;
};

Failure bad_value(std::string_view key, std::string_view value, const std::string& what) {
  return usage(std::string(key) + "=" + std::string(value) + " cannot be: " + what);
}

Result<void> read_word(std::string_view key, std::string_view value, RdzvConf& conf,
                       TorchrunKeys& torchrun) {
  if (key == "timeout" || key == "keep_alive_interval") {
    const Result<Milliseconds> time = parse_seconds(value);
    if (!time) return bad_value(key, value, time.error().context);
    if (*time == Milliseconds::zero()) return bad_value(key, value, kMoreThanZero);
    (key == "timeout" ? torchrun.timeout : torchrun.keep_alive_interval) = *time;
  } else if (key == "keep_alive_max_attempt") {
    const Result<int> attempts = parse_integer(value, 1, 1000);
    if (!attempts) return bad_value(key, value, attempts.error().context);
    torchrun.keep_alive_attempts = *attempts;
  } else if (key == "is_host") {
    const Result<bool> is_host = parse_switch(value);
    if (!is_host) return bad_value(key, value, is_host.error().context);
    conf.is_host = *is_host;
  } else if (key == "auth") {
    if (value != "none" && value != "token") return bad_value(key, value, "give token or none");
    conf.authenticated = value == "token";
  } else if (key == "join") {
    if (value != "now" && value != "restart") return bad_value(key, value, "give now or restart");
    conf.join_at_restart = value == "restart";
  } else if (key == "store_users") {
    if (value != "own" && value != "any") return bad_value(key, value, "give own or any");
    conf.store_for_all_users = value == "any";
  } else if (key == "store_type") {
    if (value != "tcp") return bad_value(key, value, "the store is always tcp");
  } else if (key == "use_libuv") {
    // Selects how PyTorch's own server reads its sockets. It is not used here, so nothing changes.
  } else {
    const std::string meant = did_you_mean(key, kKeys);
    const std::string unknown = "unknown key '" + std::string(key) + "'";
    return usage(unknown + (meant.empty() ? known_keys() : meant));
  }
  return {};
}

Result<void> read_pair(std::string_view key, std::string_view value, RdzvConf& conf,
                       TorchrunKeys& torchrun) {
  for (const TimeKey& known : kTimeKeys) {
    if (known.name != key) continue;
    const Result<Milliseconds> time = parse_seconds(value);
    if (!time) return bad_value(key, value, time.error().context);
    const bool zero = *time == Milliseconds::zero();
    if (zero && !known.may_be_zero) return bad_value(key, value, kMoreThanZero);
    conf.*known.member = *time;
    return {};
  }
  return read_word(key, value, conf, torchrun);
}

// The daemon gets the time-out for lost nodes and derives the interval of the beats from it; an
// interval that the user gave is converted into a time-out. torchrun regards a node as lost after
// keep_alive_max_attempt missed beats.
std::optional<Milliseconds> implied_timeout(const RdzvConf& conf, const TorchrunKeys& torchrun) {
  constexpr int kBeatsInTimeout = 4;  // Like rendezvous/protocol/wire.h's.
  if (torchrun.keep_alive_interval || torchrun.keep_alive_attempts) {
    const Milliseconds interval = torchrun.keep_alive_interval.value_or(Milliseconds(5'000));
    return interval * torchrun.keep_alive_attempts.value_or(3);
  }
  if (!conf.heartbeat_interval) return std::nullopt;
  return *conf.heartbeat_interval * kBeatsInTimeout;
}

}  // namespace

Result<RdzvConf> parse_rdzv_conf(std::string_view text) {
  RdzvConf conf;
  TorchrunKeys torchrun;
  if (text.size() > kBytesMax) return usage("it is longer than 4096 bytes");
  while (!text.empty()) {
    const std::size_t comma = text.find(',');
    const std::string_view pair = text.substr(0, comma);
    text.remove_prefix(comma == std::string_view::npos ? text.size() : comma + 1);
    const std::size_t equals = pair.find('=');
    if (equals == std::string_view::npos || equals == 0 || equals + 1 == pair.size()) {
      return usage("'" + std::string(pair) + "' is not KEY=VALUE");
    }
    const Result<void> read =
        read_pair(pair.substr(0, equals), pair.substr(equals + 1), conf, torchrun);
    if (!read) return read.error();
  }
  if (!conf.join_timeout) conf.join_timeout = torchrun.timeout;
  if (!conf.heartbeat_timeout) conf.heartbeat_timeout = implied_timeout(conf, torchrun);
  return conf;
}

}  // namespace ddprun::launcher
