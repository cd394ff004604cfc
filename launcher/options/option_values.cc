#include "launcher/options/option_values.h"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <csignal>
#include <initializer_list>
#include <utility>

#include "common/text/display.h"
#include "common/text/figures.h"

namespace ddprun::launcher {
namespace {

// More than a user would type; a list from a faulty script is refused before it is read in full.
constexpr std::size_t kListItemsMax = kLocalWorkersMax;

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos || parts.size() > kListItemsMax) return parts;
    text.remove_prefix(at + 1);
  }
}

std::optional<int> local_rank_of(std::string_view text) {
  const std::optional<int> rank = as_number<int>(text);
  return rank && *rank >= 0 && *rank < kLocalWorkersMax ? rank : std::nullopt;
}

struct NamedSignal {
  std::string_view name;
  int number;
};

constexpr std::array kSignals = std::to_array<NamedSignal>({
    {"SIGTERM", SIGTERM},
    {"SIGINT", SIGINT},
    {"SIGHUP", SIGHUP},
    {"SIGQUIT", SIGQUIT},
    {"SIGUSR1", SIGUSR1},
    {"SIGUSR2", SIGUSR2},
    {"SIGXCPU", SIGXCPU},
    {"SIGALRM", SIGALRM},
    {"SIGABRT", SIGABRT},
    {"SIGPWR", SIGPWR},
    {"SIGVTALRM", SIGVTALRM},
});

bool is_name(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char letter) {
    return std::isalnum(letter) || letter == '-' || letter == '.' || letter == '_';
  });
}

bool is_host_text(std::string_view host) {
  if (host.find(':') == std::string_view::npos) return is_name(host);
  const std::size_t zone = host.find('%');
  const std::string number(host.substr(0, zone));
  if (number.find('\0') != std::string::npos) return false;  // inet_pton() would stop there.
  in6_addr address;
  return inet_pton(AF_INET6, number.c_str(), &address) == 1 &&
         (zone == std::string_view::npos || is_name(host.substr(zone + 1)));
}

}  // namespace

Result<std::string> parse_run_id(std::string_view text) {
  if (is_plain_line(text)) return std::string(text);
  return usage("a run id is one line of UTF-8 text without control characters");
}

Result<NodeRange> parse_nnodes(std::string_view text) {
  const std::vector<std::string_view> parts = split(text, ':');
  const std::optional<int> min = as_number<int>(parts.front());
  const std::optional<int> max = as_number<int>(parts.back());
  const bool fits = parts.size() <= 2 && min && max && 1 <= *min && *min <= *max;
  if (fits && *max <= kNodesMax) return NodeRange{*min, *max};
  return usage("give N or MIN:MAX with 1 <= MIN <= MAX <= " + std::to_string(kNodesMax));
}

Result<WorkerCount> parse_worker_count(std::string_view text) {
  using enum WorkerCount::Kind;
  if (text == "auto") return WorkerCount{kAuto, 0};
  if (text == "gpu") return WorkerCount{kGpu, 0};
  if (text == "cpu") return WorkerCount{kCpu, 0};
  const std::optional<int> number = as_number<int>(text);
  if (number && *number >= 1 && *number <= kLocalWorkersMax) return WorkerCount{kNumber, *number};
  return usage("give auto, gpu, cpu or a number from 1 to " + std::to_string(kLocalWorkersMax));
}

Result<std::uint16_t> parse_port(std::string_view text) {
  const std::optional<std::uint16_t> port = as_number<std::uint16_t>(text);
  if (port) return *port;
  return usage("give a port number from 0 to 65535");
}

Result<PortRange> parse_port_range(std::string_view text) {
  const std::optional<PortRange> range = port_range_of(text);
  if (range) return *range;
  return usage("give the first and the last port from 1 to 65535, such as 29500-29599");
}

Result<Endpoint> parse_endpoint(std::string_view text) {
  Failure failure = usage("give HOST, HOST:PORT or [IPV6]:PORT");
  Endpoint endpoint;
  std::string_view port;
  if (text.starts_with('[')) {
    const std::size_t close = text.find(']');
    if (close == std::string_view::npos) return failure;
    endpoint.host = text.substr(1, close - 1);
    const std::string_view rest = text.substr(close + 1);
    if (!rest.empty() && (rest.front() != ':' || rest.size() == 1)) return failure;
    if (!rest.empty()) port = rest.substr(1);
  } else if (std::count(text.begin(), text.end(), ':') == 1) {
    const std::size_t colon = text.find(':');
    endpoint.host = text.substr(0, colon);
    port = text.substr(colon + 1);
    if (port.empty()) return failure;
  } else {
    endpoint.host = text;  // A name, or an IPv6 address without brackets and port.
  }
  if (!is_host_text(endpoint.host)) return failure;
  if (port.empty()) return endpoint;
  const Result<std::uint16_t> number = parse_port(port);
  if (!number) return usage(number.error().context + " after the host");
  endpoint.port = *number;
  return endpoint;
}

Result<std::vector<Endpoint>> parse_endpoints(std::string_view text) {
  std::vector<Endpoint> endpoints;
  for (const std::string_view part : split(text, ',')) {
    Result<Endpoint> endpoint = parse_endpoint(part);
    if (!endpoint) return endpoint.error();
    endpoints.push_back(std::move(*endpoint));
  }
  return endpoints;
}

Result<Milliseconds> parse_seconds(std::string_view text) {
  constexpr double kSecondsMax = 1e7;  // 115 days; keeps sums of durations far from overflow.
  const std::optional<double> seconds = as_number<double>(text);
  if (seconds && std::isfinite(*seconds) && *seconds >= 0 && *seconds <= kSecondsMax) {
    return Milliseconds(std::llround(*seconds * 1000));
  }
  return usage("give seconds from 0 to 10000000, such as 30 or 0.5");
}

Result<Milliseconds> parse_some_seconds(std::string_view text) {
  const auto seconds = parse_seconds(text);
  if (seconds && seconds->count() == 0) return usage("give more than 0 seconds");
  return seconds;
}

// Killed more often, no run gets anywhere.
Result<Milliseconds> parse_chaos(std::string_view text) {
  constexpr Milliseconds kLeast{100};
  const auto seconds = parse_seconds(text);
  if (seconds && *seconds >= kLeast) return seconds;
  return usage("give seconds from 0.1 to 10000000");
}

Result<std::string> parse_audit(std::string_view text) {
  const bool has_sign = text.ends_with('%');
  const std::string number(text.substr(0, text.size() - (has_sign ? 1 : 0)));
  double percent = -1;
  const char* const end = number.data() + number.size();
  const auto read = std::from_chars(number.data(), end, percent, std::chars_format::fixed);
  if (read.ec == std::errc() && read.ptr == end && percent >= 0 && percent <= 100) return number;
  return usage("give a percentage from 0 to 100");
}

Result<std::uint64_t> parse_seed(std::string_view text) {
  const std::optional<std::uint64_t> seed = as_number<std::uint64_t>(text);
  if (seed) return *seed;
  return usage("give a number from 0 to 18446744073709551615");
}

Result<StreamMap> parse_stream_map(std::string_view text) {
  Failure failure = usage(
      "give 0 (none), 1 (stdout), 2 (stderr), 3 (both), or LOCAL_RANK:NUMBER pairs such as "
      "0:1,11:3");
  const auto streams_of = [](std::string_view digit) -> std::optional<std::uint8_t> {
    const std::optional<int> value = as_number<int>(digit);
    if (!value || *value < StreamMap::kNone || *value > StreamMap::kBoth) return std::nullopt;
    return static_cast<std::uint8_t>(*value);
  };
  StreamMap map;
  if (const auto streams = streams_of(text)) {
    map.others = *streams;
    return map;
  }
  for (const std::string_view pair : split(text, ',')) {
    const std::size_t colon = pair.find(':');
    if (colon == std::string_view::npos) return failure;
    const std::optional<int> rank = local_rank_of(pair.substr(0, colon));
    const auto streams = streams_of(pair.substr(colon + 1));
    if (!rank || !streams || !map.of_rank.emplace(*rank, *streams).second) return failure;
  }
  return map;
}

namespace {

// "4K", "100M", "1T": powers of 1024, from 4K on.
std::optional<std::uint64_t> size_of(std::string_view text) {
  constexpr std::string_view kUnits = "KMGT";
  const std::size_t unit = text.empty() ? kUnits.npos : kUnits.find(text.back());
  if (unit == kUnits.npos) return std::nullopt;
  text.remove_suffix(1);
  const std::optional<int> number = as_number<int>(text);
  if (!number || *number < 1 || *number > 1'000'000) return std::nullopt;
  const std::uint64_t bytes = static_cast<std::uint64_t>(*number) << (10 * (unit + 1));
  return bytes < 4096 ? std::nullopt : std::optional(bytes);
}

}  // namespace

Result<agent::LogRotation> parse_rotation(std::string_view text) {
  const Failure failure = usage(
      "give a size and how many old files to keep, such as 100M:5; at least 4K, at most 1000G");
  agent::LogRotation rotation;
  const std::size_t colon = std::min(text.find(':'), text.size());
  const auto size = size_of(text.substr(0, colon));
  if (!size || *size > std::uint64_t{1000} << 30) return failure;
  rotation.bytes = *size;
  if (colon == text.size()) return rotation;
  const std::optional<int> keep = as_number<int>(text.substr(colon + 1));
  if (!keep || *keep < 0 || *keep > 1000) return failure;
  rotation.keep = *keep;
  return rotation;
}

Result<std::vector<std::string>> parse_needles(std::string_view text) {
  std::vector<std::string> needles(1);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool comma = text[i] == ',';
    const bool twice = comma && i + 1 < text.size() && text[i + 1] == ',';
    if (comma && !twice) {
      needles.emplace_back();
    } else {
      needles.back() += text[i];
    }
    if (twice) ++i;
  }
  for (const std::string& needle : needles) {
    if (needle.empty()) return usage("give texts separated by commas, none of them empty");
  }
  return needles;
}

Result<std::vector<int>> parse_local_ranks(std::string_view text) {
  std::vector<int> ranks;
  for (const std::string_view item : split(text, ',')) {
    const std::optional<int> rank = local_rank_of(item);
    if (!rank) return usage("give local ranks separated by commas, such as 0,3");
    ranks.push_back(*rank);
  }
  return ranks;
}

Result<std::vector<int>> parse_signals(std::string_view text) {
  std::vector<int> numbers;
  for (const std::string_view name : split(text, ',')) {
    const auto found = std::find_if(kSignals.begin(), kSignals.end(),
                                    [&](const NamedSignal& signal) { return signal.name == name; });
    if (found == kSignals.end()) {
      return usage("'" + std::string(name) +
                   "' is not one of SIGTERM SIGINT SIGHUP SIGQUIT SIGUSR1 SIGUSR2 SIGXCPU SIGALRM "
                   "SIGABRT SIGPWR SIGVTALRM");
    }
    numbers.push_back(found->number);
  }
  return numbers;
}

// Separated by spaces. Quotes are not supported: a path with a space in it belongs in ssh's own
// configuration.
Result<std::vector<std::string>> parse_words(std::string_view text) {
  std::vector<std::string> words;
  std::optional<std::string> word;  // The word in progress.
  char quote = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char letter = text[i];
    if (letter == quote) {
      quote = 0;
    } else if (!quote && letter == ' ') {
      if (word) words.push_back(*std::exchange(word, std::nullopt));
    } else {
      if (!word) word = "";
      const bool escapes = letter == '\\' && quote != '\'' && i + 1 < text.size();
      if (!quote && (letter == '\'' || letter == '"')) {
        quote = letter;
      } else {
        word->push_back(escapes ? text[++i] : letter);
      }
    }
  }
  if (quote) return usage("a quotation mark is missing");
  if (word) words.push_back(std::move(*word));
  if (words.empty()) return usage("give a command");
  return words;
}

Result<std::vector<std::string>> parse_variable_names(std::string_view text) {
  std::vector<std::string> names;
  for (const std::string_view name : split(text, ',')) {
    const bool fits = !name.empty() && name.find('=') == std::string_view::npos;
    if (!fits) return usage("give names of variables separated by commas, such as HOME,LANG");
    names.emplace_back(name);
  }
  return names;
}

namespace {

// A word for auto or off in another spelling, which would be taken for a module of that name.
bool is_switch(std::string_view text) {
  std::string lower;
  for (const char letter : text) {
    lower.push_back(static_cast<char>(std::tolower(static_cast<unsigned char>(letter))));
  }
  constexpr std::array<std::string_view, 8> kSwitches = {"auto", "off",  "on",    "yes",
                                                         "no",   "true", "false", "none"};
  return std::ranges::find(kSwitches, lower) != kSwitches.end();
}

}  // namespace

Result<std::string> parse_preload(std::string_view text) {
  constexpr std::size_t kModulesMax = 32'768;  // Characters of a list.
  constexpr std::string_view kCure = "give auto, off, or modules separated by commas: torch,numpy";
  if (text == "off") return std::string();
  if (text.size() > kModulesMax) return usage(std::string(kCure));
  const auto names = split(text, ',');
  for (const std::string_view name : names) {
    if (names.size() > 1 && name == "auto") {
      return usage("auto finds the modules by itself: give auto, or the modules without it");
    }
    if (text != "auto" && is_switch(name)) return usage(std::string(kCure));
    char before = '.';
    for (const char letter : name) {
      const auto byte = static_cast<unsigned char>(letter);
      const bool begins = std::isalpha(byte) || letter == '_' || byte >= 0x80;
      const bool fits = begins || (before != '.' && (letter == '.' || std::isdigit(byte)));
      if (!fits) return usage(std::string(kCure));
      before = letter;
    }
    if (before == '.') return usage(std::string(kCure));
  }
  return std::string(text);
}

Result<agent::StdinChoice> parse_stdin(std::string_view text) {
  if (text == "none") return agent::StdinChoice{};
  if (text == "all") return agent::StdinChoice{.all = true};
  const std::optional<int> rank = as_number<int>(text);
  if (rank && *rank >= 0 && *rank < kLocalWorkersMax)
    return agent::StdinChoice{.local_rank = *rank};
  return usage("give a local rank, all, or none");
}

Result<MemoryFolder> parse_memory_folder(std::string_view text) {
  constexpr const char* kSizes = "a whole number and K, M, G or T, such as 512M; at least 4K";
  const std::vector<std::string_view> parts = split(text, ',');
  const auto size = size_of(parts.empty() ? text : parts.front());
  if (!size) return usage(std::string("give a size first: ") + kSizes);
  MemoryFolder folder{.bytes = *size};
  for (std::size_t i = 1; i < parts.size(); ++i) {
    const std::size_t equals = std::min(parts[i].find('='), parts[i].size());
    const std::string_view name = parts[i].substr(0, equals);
    const std::string_view value = parts[i].substr(std::min(equals + 1, parts[i].size()));
    const auto rate = size_of(value);
    if (name == "rate" && rate) {
      folder.rate = *rate;
    } else if (name == "rate") {
      return usage(std::string("give rate as the bytes of a second: ") + kSizes);
    } else if (name == "copies" && (value == "on" || value == "off")) {
      folder.copies = value == "on";
    } else if (name == "at" && value.starts_with('/')) {
      folder.at = value;
    } else if (name == "at") {
      return usage("give at a folder's whole path, from / on");
    } else {
      return usage("'" + std::string(parts[i]) +
                   "' is none of copies=on, copies=off, rate=SIZE and at=FOLDER");
    }
  }
  return folder;
}

std::string to_string(const WorkerCount& count) {
  switch (count.kind) {
    case WorkerCount::Kind::kAuto: return "auto";
    case WorkerCount::Kind::kGpu: return "gpu";
    case WorkerCount::Kind::kCpu: return "cpu";
    case WorkerCount::Kind::kNumber: break;
  }
  return std::to_string(count.number);
}

std::string to_string(const NodeRange& range) {
  const std::string max = std::to_string(range.max);
  return range.min == range.max ? max : std::to_string(range.min) + ":" + max;
}

std::string to_string(const Endpoint& endpoint) {
  const bool brackets = endpoint.host.find(':') != std::string::npos;
  std::string text = brackets ? "[" + endpoint.host + "]" : endpoint.host;
  if (endpoint.port) text += ":" + std::to_string(*endpoint.port);
  return text;
}

}  // namespace ddprun::launcher
