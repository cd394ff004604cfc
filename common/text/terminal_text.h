#pragma once
// Text from outside (run ids, host names, reasons, the output of other programs) on its way to a
// terminal or a log. A terminal obeys what it is sent: it may be made to take another title, to
// answer as if somebody typed, or to stay red. This is the only place that decides what is safe.
// Pure.

#include <string>
#include <string_view>

namespace ddprun {

// Several lines as other programs wrote them, without what a terminal would obey; ends of line and
// tabs stay. Colours and the like (SGR) stay, too, and are ended at the end of the text, or go.
// For what ddprun quotes.
enum class Colours { kKept, kRemoved };
std::string without_escapes(std::string_view text, Colours colours = Colours::kKept);

// One line that can neither be obeyed nor break a line, a log or a table: "?" in place of each
// control character (also U+0080 to U+009F and those that change the direction of writing) and of
// each byte that is not UTF-8; a blank in place of a tab. For names and sentences from outside.
std::string plain_line(std::string_view text);

// Whether `text` is such a line already.
bool is_plain_line(std::string_view text);

// Whether colours or the like that `text` begins are still on at its end.
bool leaves_colours_on(std::string_view text);

constexpr std::string_view kColoursOff = "\x1b[0m";

}  // namespace ddprun
