#include "launcher/doctor/health_screen.h"

#include <algorithm>
#include <array>
#include <map>

#include "common/text/display.h"

namespace ddprun::doctor {
namespace {

struct StatusStyle {
  const char* glyph;
  const char* ascii;
  const char* colour;
};

// By Status; the palette of all screens.
constexpr std::array<StatusStyle, 5> kStyles = {
    {{"✓", "+", "32"}, {"–", "-", "90"}, {"▲", "!", "33"}, {"?", "?", "33"}, {"✗", "x", "31"}}};
constexpr std::size_t kNameWidth = 16, kValueWidth = 20, kCellMax = 24;
constexpr std::string_view kGroups[] = {"MACHINE", "GPU", "NETWORK"};

const StatusStyle& style_of(Status status) { return kStyles[static_cast<std::size_t>(status)]; }

class Painter {
 public:
  explicit Painter(const Style& style) : style_(style) {}

  std::string glyph(Status status) const {
    const StatusStyle& appearance = style_of(status);
    return paint(style_.utf8 ? appearance.glyph : appearance.ascii, appearance.colour);
  }
  std::string paint(const std::string& text, const char* sgr) const {
    if (!style_.colours || text.empty()) return text;
    return std::string("\x1b[") + sgr + "m" + text + "\x1b[0m";
  }
  // Names come from other machines: nothing in them may be obeyed by a terminal or break a line.
  std::string safe(std::string_view text) const {
    std::string plain = without_escapes(text, Colours::kRemoved);
    std::replace(plain.begin(), plain.end(), '\n', ' ');
    plain = plain_line(plain);
    if (style_.utf8) return plain;
    std::string ascii;
    for (std::size_t i = 0; i < plain.size(); ++i) {
      const auto code = static_cast<unsigned char>(plain[i]);
      if (code < 0x80)
        ascii += plain[i];
      else if ((code & 0xC0) != 0x80)
        ascii += plain.substr(i, 2) == "×" ? 'x' : '?';
    }
    return ascii;
  }
  const Style& style() const { return style_; }

 private:
  const Style& style_;
};

// Note and cure after `column` columns that are taken; on lines of their own if they do not fit.
std::string explained(const Row& row, std::size_t column, const Painter& painter) {
  const std::string note = painter.safe(row.finding.note), cure = painter.safe(row.finding.cure);
  const std::string where = painter.safe(row.where);
  const std::string bold = painter.paint(cure, "1") + (where.empty() ? "" : " " + where);
  const std::size_t behind = text_columns(cure) + (where.empty() ? 0 : text_columns(where) + 1);
  const auto width = static_cast<std::size_t>(painter.style().width);
  const std::string between = note.empty() || behind == 0 ? "" : ": ";
  const bool fits = width == 0 || column + text_columns(note) + between.size() + behind <= width;
  if (fits) return note + between + bold;
  constexpr std::size_t kIndent = kNameWidth + 4, kLeast = 20;
  const std::string indent = "\n" + std::string(kIndent, ' ');
  const std::size_t room = std::max(width, kIndent + kLeast) - kIndent;
  std::string lines;
  for (const std::string& line : wrapped_lines(note, room)) lines += indent + line;
  return lines + (behind == 0 ? "" : indent + bold);
}

std::string line_of(const Row& row, const Painter& painter) {
  std::string text = padded(painter.safe(row.finding.name), kNameWidth);
  text += " " + padded(painter.safe(row.finding.value), kValueWidth) + " ";
  std::string rest = explained(row, text_columns(text) + 3, painter);
  while (rest.empty() && text.ends_with(' ')) text.pop_back();
  if (rest.starts_with('\n')) {
    while (text.ends_with(' ')) text.pop_back();
  }
  return " " + painter.glyph(row.finding.status) + " " + text + rest + "\n";
}

std::string one_node(const HealthReport& report, const Painter& painter) {
  std::string text;
  std::optional<Group> group;
  for (const Row& row : report.rows) {
    if (group != row.group) {
      text += " " + painter.paint(std::string(kGroups[static_cast<std::size_t>(row.group)]), "2") +
              "\n";
    }
    group = row.group;
    text += line_of(row, painter);
  }
  return text;
}

// Widths of the nodes' columns; there are fewer columns than nodes if not all fit.
std::vector<std::size_t> column_widths(const HealthReport& report,
                                       const std::vector<const Row*>& shown,
                                       const Painter& painter) {
  std::vector<std::size_t> widths;
  std::size_t used = kNameWidth + 6;
  for (std::size_t i = 0; i < report.hosts.size(); ++i) {
    std::size_t width = std::max<std::size_t>(text_columns(painter.safe(report.hosts[i])), 4);
    for (const Row* row : shown)
      width = std::max(width, text_columns(painter.safe(row->cells[i].value)));
    width = std::min(width, kCellMax);
    const auto limit = static_cast<std::size_t>(painter.style().width);
    if (limit > 0 && used + width + 2 > limit) break;
    used += width + 2;
    widths.push_back(width);
  }
  return widths;
}

std::string cells_text(const Row& row, const std::vector<std::size_t>& widths,
                       const Painter& painter) {
  std::string text;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const Cell& cell = row.cells[i];
    const bool same = i > 0 && cell.status <= Status::kSkipped && !cell.value.empty() &&
                      cell.value == row.cells.front().value;
    std::string value = same ? "same" : painter.safe(cell.value);
    if (value.empty()) value = painter.style().utf8 ? "–" : "-";
    const std::string shown = fitted(value, widths[i]);
    const bool bad = cell.status > Status::kSkipped;
    text += (bad ? painter.paint(shown, style_of(cell.status).colour) : shown) + "  ";
  }
  return text;
}

std::string folded(const std::vector<const Row*>& rows, const Painter& painter) {
  constexpr std::size_t kNamesMax = 6;
  std::string names;
  for (std::size_t i = 0; i < rows.size() && i < kNamesMax; ++i) {
    names += (names.empty() ? "" : ", ") + painter.safe(rows[i]->finding.name);
  }
  if (rows.size() > kNamesMax) names += ", ...";
  names += " (-v lists them)";
  const std::string count = std::to_string(rows.size()) + " more";
  const auto width = static_cast<std::size_t>(painter.style().width);
  const bool fits = width == 0 || kNameWidth + 5 + text_columns(names) <= width;
  return " " + painter.glyph(Status::kOk) + " " + padded(count, kNameWidth) + "  " +
         painter.paint(fits ? names : "-v lists them", "2") + "\n";
}

std::string several_nodes(const HealthReport& report, const Painter& painter) {
  std::vector<const Row*> shown, hidden;
  for (const Row& row : report.rows) {
    const bool good = row.finding.status <= Status::kSkipped;
    const bool show = !good || row.compared || painter.style().verbose;
    (show ? shown : hidden).push_back(&row);
  }
  const std::vector<std::size_t> widths = column_widths(report, shown, painter);
  std::string text(kNameWidth + 5, ' ');
  for (std::size_t i = 0; i < widths.size(); ++i) {
    text += painter.paint(fitted(painter.safe(report.hosts[i]), widths[i]), "2") + "  ";
  }
  if (widths.size() < report.hosts.size()) {
    text += "and " + std::to_string(report.hosts.size() - widths.size()) + " more";
  }
  while (text.ends_with(' ')) text.pop_back();
  text += "\n";
  std::size_t taken = kNameWidth + 5;
  for (const std::size_t width : widths) taken += width + 2;
  for (const Row* row : shown) {
    std::string line = " " + painter.glyph(row->finding.status) + " ";
    line += padded(painter.safe(row->finding.name), kNameWidth) + "  ";
    line += cells_text(*row, widths, painter) + explained(*row, taken, painter);
    while (line.ends_with(' ')) line.pop_back();
    text += line + "\n";
  }
  return text + (hidden.empty() ? "" : folded(hidden, painter));
}

std::string summary(const HealthReport& report, const Painter& painter) {
  std::map<Status, int> counts;
  for (const Row& row : report.rows) ++counts[row.finding.status];
  std::string text;
  const auto add = [&](Status status, const char* one, const char* many) {
    const int count = counts[status];
    if (count == 0) return;
    const std::string words = std::to_string(count) + (count == 1 ? one : many);
    text += (text.empty() ? "" : ", ") + painter.paint(words, style_of(status).colour);
  };
  add(Status::kFail, " to cure", " to cure");
  add(Status::kWarn, " warning", " warnings");
  add(Status::kUnknown, " not measured", " not measured");
  if (text.empty()) text = painter.paint("all well", "32");
  text += "; ";
  if (report.hosts.size() > 1) text += std::to_string(report.hosts.size()) + " nodes, ";
  return " " + text + std::to_string(report.rows.size()) + " checks took " +
         ms_text(report.took_ms) + "\n";
}

}  // namespace

std::string screen(const HealthReport& report, const Style& style) {
  const Painter painter(style);
  const bool one = report.rows.empty() || report.rows.front().cells.empty();
  return "\n" + (one ? one_node(report, painter) : several_nodes(report, painter)) + "\n" +
         summary(report, painter) + "\n";
}

std::vector<std::string> warnings_of(const HealthReport& report, Status least) {
  std::vector<const Row*> bad;
  for (const Row& row : report.rows) {
    if (row.finding.status >= least) bad.push_back(&row);
  }
  std::stable_sort(bad.begin(), bad.end(), [](const Row* a, const Row* b) {
    return a->finding.status > b->finding.status;
  });
  std::vector<std::string> sentences;
  for (const Row* row : bad) {
    const Finding& finding = row->finding;
    std::string sentence = finding.name + ": " + finding.value;
    if (!finding.note.empty()) sentence += " (" + finding.note + ")";
    if (!finding.cure.empty()) sentence += "; " + finding.cure;
    sentences.push_back(std::move(sentence));
  }
  return sentences;
}

}  // namespace ddprun::doctor
