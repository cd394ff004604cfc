#include "common/text/columns.h"

#include <algorithm>

#include "common/text/utf8.h"

namespace ddprun {
namespace {

struct Range {
  char32_t first, last;
};

constexpr Range kWide[] = {{0x1100, 0x115f},   {0x231a, 0x231b},   {0x23e9, 0x23ec},
                           {0x2e80, 0x303e},   {0x3041, 0xa4cf},   {0xa960, 0xa97c},
                           {0xac00, 0xd7a3},   {0xf900, 0xfaff},   {0xfe30, 0xfe6f},
                           {0xff01, 0xff60},   {0xffe0, 0xffe6},   {0x1f300, 0x1f64f},
                           {0x1f680, 0x1f6fc}, {0x1f900, 0x1f9ff}, {0x20000, 0x3fffd}};
constexpr Range kCombining[] = {{0x300, 0x36f},   {0x483, 0x489},   {0x591, 0x5bd},
                                {0x610, 0x61a},   {0x64b, 0x65f},   {0x1ab0, 0x1aff},
                                {0x1dc0, 0x1dff}, {0x200b, 0x200f}, {0x20d0, 0x20ff},
                                {0xfe00, 0xfe0f}, {0xfe20, 0xfe2f}};

bool is_in(char32_t code, const auto& ranges) {
  return std::ranges::any_of(
      ranges, [code](const Range& range) { return code >= range.first && code <= range.last; });
}

std::size_t columns_of(const Character& character) {
  constexpr char32_t kFirstSpecial = 0x300;
  if (!character.valid || character.code < kFirstSpecial) return 1;
  if (is_in(character.code, kCombining)) return 0;
  return is_in(character.code, kWide) ? 2 : 1;
}

}  // namespace

std::size_t text_columns(std::string_view text) {
  std::size_t columns = 0;
  while (!text.empty()) {
    const Character character = first_character(text);
    columns += columns_of(character);
    text.remove_prefix(character.size);
  }
  return columns;
}

std::string_view first_columns(std::string_view text, std::size_t columns) {
  std::size_t end = 0, taken = 0;
  while (end < text.size()) {
    const Character character = first_character(text.substr(end));
    const std::size_t more = columns_of(character);
    if (taken + more > columns) break;
    taken += more;
    end += character.size;
  }
  return text.substr(0, end);
}

std::string clipped(std::string_view text, std::size_t columns, bool utf8) {
  if (first_columns(text, columns).size() == text.size()) return std::string(text);
  const std::string_view mark = utf8 ? "…" : "...";
  const std::size_t taken = text_columns(mark);
  if (columns <= taken) return std::string(first_columns(mark, columns));
  return std::string(first_columns(text, columns - taken)).append(mark);
}

std::string fitted(std::string_view text, std::size_t columns) {
  return padded(first_columns(text, columns), columns);
}

std::string padded(std::string_view text, std::size_t columns) {
  return std::string(text) + std::string(columns - std::min(columns, text_columns(text)), ' ');
}

std::string right_aligned(std::string_view text, std::size_t columns) {
  const std::size_t has = text_columns(text);
  return std::string(columns > has ? columns - has : 1, ' ').append(text);
}

void keep_fields(std::vector<LineField>& fields, std::size_t columns, std::size_t gap) {
  const auto width = [&] {
    std::size_t sum = 0;
    for (const LineField& field : fields) sum += gap + text_columns(field.text);
    return sum - std::min(sum, gap);
  };
  while (columns > 0 && fields.size() > 1 && width() > columns) {
    fields.erase(std::ranges::min_element(fields, {}, &LineField::need));
  }
}

std::vector<std::optional<std::size_t>> table_widths(const std::vector<TableColumn>& columns,
                                                     const std::vector<TableRow>& rows,
                                                     std::size_t width, std::size_t gap) {
  std::vector<std::optional<std::size_t>> widths;
  for (std::size_t i = 0; i < columns.size(); ++i) {
    std::size_t widest = text_columns(columns[i].name);
    bool empty = columns[i].need > 0;
    for (const TableRow& row : rows) {
      widest = std::max(widest, text_columns(row[i]));
      empty = empty && row[i] == "-";
    }
    widths.emplace_back(empty && !rows.empty() ? std::nullopt : std::optional(widest));
  }
  const auto sum = [&] {  // The last column takes what is left, if that is enough to read.
    constexpr std::size_t kLastMin = 20;
    std::size_t all = 0;
    for (std::size_t i = 0; i < widths.size(); ++i) {
      if (!widths[i]) continue;
      all += i + 1 == widths.size() ? std::min(*widths[i], kLastMin) : *widths[i] + gap;
    }
    return all;
  };
  // Longer names are clipped before a column goes.
  constexpr std::size_t kNameMax = 24;
  for (std::size_t i = 0; i + 1 < columns.size() && width > 0; ++i) {
    if (!widths[i] || !columns[i].may_be_clipped || sum() <= width) continue;
    widths[i] = std::min(*widths[i], kNameMax);
  }
  while (width > 0 && sum() > width) {
    std::optional<std::size_t> least;
    for (std::size_t i = 0; i < columns.size(); ++i) {
      if (!widths[i] || columns[i].need == 0) continue;
      if (!least || columns[i].need < columns[*least].need) least = i;
    }
    if (!least) break;
    widths[*least].reset();
  }
  constexpr std::size_t kClippedMin = 8;
  for (std::size_t i = 0; i + 1 < columns.size() && width > 0; ++i) {
    if (!widths[i] || !columns[i].may_be_clipped || sum() <= width) continue;
    const std::size_t over = sum() - width, has = *widths[i];
    widths[i] = std::max(std::min(has, kClippedMin), has - std::min(has, over));
  }
  return widths;
}

}  // namespace ddprun
