#pragma once
// printf into a string, cut at 511 characters: for lines of tables and of JSON. Pure.

#include <cstdarg>
#include <cstdio>
#include <string>

namespace ddprun::worker_sdk {

[[gnu::format(printf, 1, 2)]] inline std::string format(const char* pattern, ...) {
  char text[512];
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text, sizeof text, pattern, arguments);
  va_end(arguments);
  return text;
}

}  // namespace ddprun::worker_sdk
