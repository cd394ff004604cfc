#pragma once
// Text as Unicode characters. Pure. Used by terminal_text.cc and columns.cc.

#include <cstddef>
#include <string_view>

namespace ddprun {

struct Character {
  char32_t code = 0;
  std::size_t size = 1;  // In bytes.
  bool valid = false;    // Else one byte that begins no UTF-8 character; `code` is that byte.
};

// The first character of `text`, which is not empty.
Character first_character(std::string_view text);

}  // namespace ddprun
