#include "launcher/hosts/host_lines.h"

#include <set>
#include <string>

#include "launcher/options/hosts.h"

namespace ddprun::launcher {
namespace {

constexpr std::size_t kNameBytesMax = 255;
constexpr std::size_t kShownMax = 60;

Failure wrong(std::string what) { return {Errc::kBadMessage, std::move(what)}; }

std::string_view without_blanks(std::string_view line) {
  constexpr std::string_view kBlanks = " \t\r";
  const std::size_t begin = line.find_first_not_of(kBlanks);
  if (begin == std::string_view::npos) return {};
  return line.substr(begin, line.find_last_not_of(kBlanks) - begin + 1);
}

// In quotes: not endless, and nothing that a terminal would obey.
std::string quoted(std::string_view line) {
  std::string safe(line.substr(0, kShownMax));
  for (char& letter : safe) {
    if (static_cast<unsigned char>(letter) < ' ' || letter == '\x7f') letter = '?';
  }
  return "'" + safe + (line.size() > kShownMax ? "...'" : "'");
}

}  // namespace

Result<std::vector<HostEntry>> hosts_in_lines(std::string_view output) {
  std::vector<HostEntry> hosts;
  std::set<std::string> names;
  for (int number = 1; !output.empty(); ++number) {
    const std::size_t end = output.find('\n');
    const std::string_view line = without_blanks(output.substr(0, end));
    output.remove_prefix(end == std::string_view::npos ? output.size() : end + 1);
    if (line.empty()) continue;
    const std::string place = "line " + std::to_string(number) + " ";
    Result<HostEntry> host = parse_host(line);
    if (!host) return wrong(place + quoted(line) + " is not a host: " + host.error().context);
    if (host->name.size() > kNameBytesMax) return wrong(place + "is longer than a host's name");
    if (!names.insert(host->name).second) return wrong(place + "has " + host->name + " twice");
    hosts.push_back(std::move(*host));
    if (hosts.size() > kListedHostsMax) {
      return wrong("there are more than " + std::to_string(kListedHostsMax) + " hosts");
    }
  }
  return hosts;
}

}  // namespace ddprun::launcher
