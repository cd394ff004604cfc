#pragma once
// Prose in lines of a terminal's width. Pure. Used by --report and by the doctor's screen.

#include <string>
#include <string_view>
#include <vector>

#include "common/text/columns.h"

namespace ddprun {

// Whether a terminal of `width` columns would break none of the lines; 0: there is no terminal.
bool fits_columns(std::string_view lines, std::size_t width);

// `text` in lines of at most `width` columns, broken between words. A longer word has a line of its
// own, and is not cut.
std::vector<std::string> wrapped_lines(std::string_view text, std::size_t width);

}  // namespace ddprun
