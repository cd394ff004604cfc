#include "common/archive/json.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace ddprun::archive {
namespace {

// For text that is not JSON the answer means nothing; the parser will refuse it.
bool deeper_than(int limit, std::string_view body) {
  int depth = 0;
  bool in_text = false;
  for (std::size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    if (in_text && c == '\\') ++i;
    if (c == '"') in_text = !in_text;
    if (in_text) continue;
    if (c == '{' || c == '[') ++depth;
    if (c == '}' || c == ']') --depth;
    if (depth > limit) return true;
  }
  return false;
}

}  // namespace

Result<json> parse_object(std::string_view text, const Bounds& bounds) {
  if (text.size() > bounds.bytes) {
    return Failure{Errc::kBadMessage, "decoding a message that is too long: " +
                                          std::to_string(text.size()) + " bytes"};
  }
  // Nesting is bounded before anything is built.
  if (!deeper_than(bounds.depth, text)) {
    json object = json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (object.is_object()) return object;
  }
  return Failure{Errc::kBadMessage, "decoding a message that is not a JSON object"};
}

namespace {

bool printable(char c) { return c >= ' ' && c <= '~'; }

}  // namespace

void JsonText::comma() {
  if (!named_ && !first_) out_ += ',';
  first_ = named_ = false;
}

void JsonText::name(std::string_view name) {
  comma();
  ((out_ += '"') += name) += "\":";
  named_ = true;
}

void JsonText::text(std::string_view bytes) {
  comma();
  if (!std::all_of(bytes.begin(), bytes.end(), printable)) {
    using nlohmann::json;
    out_ += json(bytes).dump(-1, ' ', /*ensure_ascii=*/false, json::error_handler_t::replace);
    return;
  }
  out_ += '"';
  while (!bytes.empty()) {
    const std::size_t plain = std::min(bytes.find_first_of("\"\\"), bytes.size());
    out_ += bytes.substr(0, plain);
    if (plain < bytes.size()) (out_ += '\\') += bytes[plain];
    bytes.remove_prefix(std::min(plain + 1, bytes.size()));
  }
  out_ += '"';
}

void JsonText::whole(std::int64_t number) {
  comma();
  std::array<char, 24> digits;
  const auto end = std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
  out_.append(digits.data(), end);
}

void JsonText::truth(bool value) {
  comma();
  out_ += value ? "true" : "false";
}

void JsonText::open(char bracket) {
  comma();
  out_ += bracket;
  first_ = true;
}

void JsonText::close(char bracket) {
  out_ += bracket;
  first_ = named_ = false;
}

}  // namespace ddprun::archive
