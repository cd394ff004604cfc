#pragma once
// Text and the columns of a terminal: how wide it is, and what of it fits. Pure. Used by every
// table and screen.

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

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

}  // namespace ddprun
