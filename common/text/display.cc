#include "common/text/display.h"

#include <algorithm>

namespace ddprun {

Character first_character(std::string_view text) {
  const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(text[at]); };
  const unsigned char first = byte(0);
  if (first < 0x80) return {first, 1, true};
  const std::size_t size = first < 0xc2 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  if (size == 0 || first > 0xf4 || text.size() < size) return {first, 1, false};
  char32_t code = first & (0x7fU >> size);
  for (std::size_t at = 1; at < size; ++at) {
    if ((byte(at) & 0xc0) != 0x80) return {first, 1, false};
    code = code << 6 | (byte(at) & 0x3fU);
  }
  constexpr char32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool surrogate = code >= 0xd800 && code < 0xe000;
  if (code < kLeast[size] || surrogate || code > 0x10ffff) return {first, 1, false};
  return {code, size, true};
}

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

bool fits_columns(std::string_view lines, std::size_t width) {
  while (width > 0 && !lines.empty()) {
    const std::size_t end = std::min(lines.find('\n'), lines.size());
    if (text_columns(lines.substr(0, end)) > width) return false;
    lines.remove_prefix(std::min(end + 1, lines.size()));
  }
  return true;
}

std::vector<std::string> wrapped_lines(std::string_view text, std::size_t width) {
  std::vector<std::string> lines;
  std::string line;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    if (!line.empty() && text_columns(line) + 1 + text_columns(word) > width) {
      lines.push_back(std::move(line));
      line.clear();
    }
    line += (line.empty() ? "" : " ") + std::string(word);
    begin = end + 1;
  }
  if (!line.empty()) lines.push_back(std::move(line));
  return lines;
}

namespace {

constexpr char kEscape = '\x1b';

// Whether the bytes between "ESC [" and "m" end all that was on: nothing, or 0 as the last of them.
bool ends_colours(std::string_view parameters) {
  const std::size_t last = parameters.find_last_of(";:");
  const std::string_view number =
      last == std::string_view::npos ? parameters : parameters.substr(last + 1);
  return number.find_first_not_of('0') == std::string_view::npos;
}

struct Sequence {
  std::size_t size = 1;
  bool is_colour = false;
  bool is_end = false;
};

// "ESC [", parameters and intermediates, one final byte. A cut sequence ends where it cannot go on.
Sequence control_sequence(std::string_view text) {
  std::size_t at = 2;
  while (at < text.size() && text[at] >= ' ' && text[at] <= '?') ++at;
  if (at == text.size() || text[at] < '@' || text[at] > '~') return {at};
  const std::string_view parameters = text.substr(2, at - 2);
  const bool plain = parameters.find_first_not_of("0123456789;:") == std::string_view::npos;
  if (text[at] != 'm' || !plain) return {at + 1};
  return {at + 1, true, ends_colours(parameters)};
}

// The sequence at the beginning of `text`, which is an escape.
Sequence sequence_at(std::string_view text) {
  if (text.size() < 2) return {};
  if (text[1] == '[') return control_sequence(text);
  // OSC, DCS, SOS, PM, APC: a string up to BEL or ESC \; one without an end takes its line only.
  if (std::string_view("]PX^_").find(text[1]) != std::string_view::npos) {
    const std::size_t end = text.find_first_of("\a\n\x1b", 2);
    if (end == std::string_view::npos) return {text.size()};
    if (text[end] == '\a') return {end + 1};
    return {text.substr(end, 2) == "\x1b\\" ? end + 2 : end};
  }
  std::size_t at = 1;
  while (at < text.size() && text[at] >= ' ' && text[at] <= '/') ++at;
  return {std::min(at + (at < text.size() && text[at] >= '0' && text[at] <= '~'), text.size())};
}

bool is_control(std::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  if (byte == '\n' || byte == '\t') return false;
  return byte < ' ' || byte == 0x7f;
}

// U+0080 to U+009F in UTF-8: the same orders in one character, of which `out` ends in the first
// byte.
bool completes_control(std::string_view out, std::string_view text) {
  const auto byte = static_cast<unsigned char>(text[0]);
  return out.ends_with('\xc2') && byte >= 0x80 && byte < 0xa0;
}

// Whether a terminal or a reader takes it for what it is, within its line.
bool is_plain(const Character& character) {
  if (!character.valid) return false;
  const char32_t code = character.code;
  const bool control = code < ' ' || (code >= 0x7f && code < 0xa0);
  const bool breaks_line = code == 0x2028 || code == 0x2029;
  const bool turns_line = (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  return !control && !breaks_line && !turns_line;
}

}  // namespace

std::string without_escapes(std::string_view text, Colours wanted) {
  std::string out;
  bool colours = false;
  while (!text.empty()) {
    std::size_t size = 1;
    bool keep = !is_control(text);
    if (text[0] == kEscape) {
      const Sequence sequence = sequence_at(text);
      size = sequence.size;
      keep = sequence.is_colour && wanted == Colours::kKept;
      if (keep) colours = !sequence.is_end;
    } else if (completes_control(out, text)) {
      out.pop_back();
      keep = false;
    }
    if (keep) out.append(text.substr(0, size));
    text.remove_prefix(size);
  }
  if (colours) out += kColoursOff;
  return out;
}

std::string plain_line(std::string_view text) {
  std::string line;
  while (!text.empty()) {
    const Character character = first_character(text);
    if (is_plain(character)) {
      line.append(text.substr(0, character.size));
    } else {
      line += character.code == '\t' ? ' ' : '?';
    }
    text.remove_prefix(character.size);
  }
  return line;
}

bool is_plain_line(std::string_view text) {
  while (!text.empty()) {
    const Character character = first_character(text);
    if (!is_plain(character)) return false;
    text.remove_prefix(character.size);
  }
  return true;
}

bool leaves_colours_on(std::string_view text) {
  bool colours = false;
  for (std::size_t at; (at = text.find(kEscape)) != std::string_view::npos;) {
    text.remove_prefix(at);
    const Sequence sequence = sequence_at(text);
    if (sequence.is_colour) colours = !sequence.is_end;
    text.remove_prefix(sequence.size);
  }
  return colours;
}

}  // namespace ddprun
