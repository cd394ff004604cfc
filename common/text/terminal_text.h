#pragma once
// Text of other programs on its way to a terminal, which obeys what it is sent: it may be told to
// take another title, to answer as if somebody typed, or to stay red. Pure.

#include <string>
#include <string_view>

namespace ddprun {

// Without what a terminal would obey, but for colours and the like (SGR), which are ended at the
// end of the text; ends of line and tabs stay. For what ddprun quotes.
std::string without_escapes(std::string_view text);

// Whether colours or the like that `text` begins are still on at its end.
bool leaves_colours_on(std::string_view text);

constexpr std::string_view kColoursOff = "\x1b[0m";

}  // namespace ddprun
