#include "worker_sdk/join/variables.h"

#include <charconv>

#include "ddprun/error.h"

namespace ddprun::worker_sdk {

void throw_environment(const std::string& text) {
  throw Error(ErrorKind::bad_environment, {.operation = "reading the environment"}, text);
}

std::optional<int> parse_number(std::string_view text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<std::string> text_of(const Variables& variables, const std::string& name) {
  const auto found = variables.find(name);
  if (found == variables.end() || found->second.empty()) return std::nullopt;
  return found->second;
}

std::optional<int> number_of(const Variables& variables, const std::string& name, int min,
                             int max) {
  const auto text = text_of(variables, name);
  if (!text) return std::nullopt;
  const auto value = parse_number(*text);
  if (!value || *value < min || *value > max) {
    throw_environment(name + "=" + text->substr(0, 100) + " is not a number from " +
                      std::to_string(min) + " to " + std::to_string(max));
  }
  return value;
}

}  // namespace ddprun::worker_sdk
