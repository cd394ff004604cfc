#include "common/archive/json.h"

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

}  // namespace ddprun::archive
