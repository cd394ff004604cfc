#include "common/archive/json_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>

namespace ddprun::archive {
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
