#include "rendezvous/daemon/http_message.h"

#include <algorithm>
#include <charconv>

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

}  // namespace

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
