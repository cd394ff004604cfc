#pragma once
// Whether text for a person may be UTF-8, by the variables of a locale. Used for the verdict, the
// status line, ddprunctl and doctor.
//
// Not by setlocale(): it knows only what is installed on this machine, and the terminal is often
// that of another one, from which ssh has brought the variables.

#include <algorithm>
#include <cctype>
#include <string>

namespace ddprun {

// `variable(name)` is its value as a string; empty if it is not set.
template <class Variable>
bool is_utf8_locale(Variable&& variable) {
  std::string locale;
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    if (locale.empty()) locale = variable(name);
  }
  std::ranges::transform(locale, locale.begin(), [](unsigned char c) { return std::tolower(c); });
  return locale.find("utf-8") != std::string::npos || locale.find("utf8") != std::string::npos;
}

}  // namespace ddprun
