#pragma once
// Reads single variables of an environment that is passed as a map. Pure. Used by environment.cc
// and started_tasks.cc.

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun::worker_sdk {

using Variables = std::map<std::string, std::string>;

inline constexpr int kWorldSizeMax = 1 << 20;

// Throws Error(bad_environment).
[[noreturn]] void throw_environment(const std::string& text);

// std::nullopt if it is not a decimal number that fits.
std::optional<int> parse_number(std::string_view text);

// std::nullopt if the variable is not set, or empty.
std::optional<std::string> text_of(const Variables& variables, const std::string& name);

// The variable's number; std::nullopt if the variable is not set. Throws Error(bad_environment),
// naming the variable, if its value is not a number from `min` to `max`.
std::optional<int> number_of(const Variables& variables, const std::string& name, int min, int max);

}  // namespace ddprun::worker_sdk
