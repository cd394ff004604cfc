#include "rendezvous/daemon/http_message.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

#include "common/text/words.h"

namespace ddprun::rendezvous {
namespace {

std::optional<std::string> decoded(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      out += text[i] == '+' ? ' ' : text[i];
      continue;
    }
    unsigned char byte = 0;
    const char* digits = text.data() + i + 1;
    const char* end = digits + std::min<std::size_t>(2, text.size() - i - 1);
    const auto [stop, error] = std::from_chars(digits, end, byte, 16);
    if (error != std::errc{} || stop != digits + 2) return std::nullopt;
    out += static_cast<char>(byte);
    i += 2;
  }
  return out;
}

bool is_address(const std::string& text) {
  in6_addr address{};  // Large enough for both.
  return ::inet_pton(AF_INET, text.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

bool is_port(std::string_view text) {
  return text.empty() ||
         (text.front() == ':' && text.find_first_not_of("0123456789", 1) == std::string_view::npos);
}

}  // namespace

bool is_own_host(std::string_view host, std::string_view machine) {
  if (host.starts_with('[')) {
    const std::size_t end = host.find(']');
    return end != std::string_view::npos && is_port(host.substr(end + 1)) &&
           is_address(std::string(host.substr(1, end - 1)));
  }
  std::string_view name = host.substr(0, host.find(':'));
  if (!is_port(host.substr(name.size()))) return false;
  if (is_address(std::string(name))) return true;
  if (name.ends_with('.')) name.remove_suffix(1);
  if (name.empty()) return false;
  return equal_names(name, "localhost") || equal_names(name, machine) ||
         equal_names(name, machine.substr(0, machine.find('.')));
}

std::optional<HttpTarget> parse_target(std::string_view target) {
  if (!target.starts_with('/')) return std::nullopt;
  const std::size_t mark = target.find('?');
  HttpTarget parsed{std::string(target.substr(0, mark)), {}};
  std::string_view rest = mark == std::string_view::npos ? "" : target.substr(mark + 1);
  while (!rest.empty()) {
    const std::size_t end = rest.find('&');
    const std::string_view pair = rest.substr(0, end);
    rest = end == std::string_view::npos ? "" : rest.substr(end + 1);
    const std::size_t equals = pair.find('=');
    const auto name = decoded(pair.substr(0, equals));
    const auto value = decoded(equals == std::string_view::npos ? "" : pair.substr(equals + 1));
    if (!name || !value) return std::nullopt;
    if (!name->empty()) parsed.query[*name] = *value;
  }
  return parsed;
}

}  // namespace ddprun::rendezvous
