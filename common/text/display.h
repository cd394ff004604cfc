#pragma once
// Text on its way to a terminal or a log: UTF-8, columns, wrapping, and which bytes are safe. Pure.

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

// Text as Unicode characters.
struct Character {
  char32_t code = 0;
  std::size_t size = 1;  // In bytes.
  bool valid = false;    // Else one byte that begins no UTF-8 character; `code` is that byte.
};

// The first character of `text`, which is not empty.
Character first_character(std::string_view text);

// Whether text for a person may be UTF-8, by the variables of a locale. Used for the verdict, the
// status line, ddprunctl and doctor.
//
// Not by setlocale(): it knows only what is installed on this machine, and the terminal is often
// that of another one, from which ssh has brought the variables.

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

// Text and the columns of a terminal: how wide it is, and what of it fits. Pure. Used by every
// table and screen.

// Columns of UTF-8 text without escape sequences: two for a wide character (Chinese, emoji), none
// for a combining one, one for any other and for a byte that is not UTF-8.
std::size_t text_columns(std::string_view text);

// The longest beginning of `text` that is at most so wide.
std::string_view first_columns(std::string_view text, std::size_t columns);

// `text` if it fits, else its beginning and "…" ("..." in ASCII).
std::string clipped(std::string_view text, std::size_t columns, bool utf8 = true);

// Exactly so wide: cut off, or with blanks behind.
std::string fitted(std::string_view text, std::size_t columns);

// With blanks behind, or as wide as it is.
std::string padded(std::string_view text, std::size_t columns);

// With blanks before it, and at least one; never cut off: half a number is another number.
std::string right_aligned(std::string_view text, std::size_t columns);

// A part of a line that is shown whole or not at all.
struct LineField {
  std::string text{};
  int need = 0;               // The field with the least goes first.
  const char* sgr = nullptr;  // Its look, if the terminal has colours.
};

// Leaves out fields until the others, `gap` columns apart, are at most so wide; one stays. 0
// columns: there is no limit.
void keep_fields(std::vector<LineField>& fields, std::size_t columns, std::size_t gap);

// A column of a table, likewise.
struct TableColumn {
  std::string name{};
  int need = 0;                 // The column with the least goes first; 0: it stays.
  bool may_be_clipped = false;  // For names of any length.
};

// Which columns are shown and how wide they are; nothing: not shown. A column that is empty ("-" in
// each row) is not shown.
using TableRow = std::vector<std::string>;
std::vector<std::optional<std::size_t>> table_widths(const std::vector<TableColumn>& columns,
                                                     const std::vector<TableRow>& rows,
                                                     std::size_t width, std::size_t gap);

// Prose in lines of a terminal's width. Pure. Used by --report and by the doctor's screen.

// Whether a terminal of `width` columns would break none of the lines; 0: there is no terminal.
bool fits_columns(std::string_view lines, std::size_t width);

// `text` in lines of at most `width` columns, broken between words. A longer word has a line of its
// own, and is not cut.
std::vector<std::string> wrapped_lines(std::string_view text, std::size_t width);

// Text from outside (run ids, host names, reasons, the output of other programs) on its way to a
// terminal or a log. A terminal obeys what it is sent: it may be made to take another title, to
// answer as if a person typed, or to stay red. This is the only place that decides what is safe.
// Pure.

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
