#include "launcher/doctor/health_report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "common/assert.h"
#include "common/text/display.h"
#include "launcher/doctor/subject.h"

namespace ddprun::doctor {
namespace {

std::string scaled(std::int64_t bytes, double step, const std::array<const char*, 5>& units) {
  double amount = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (amount >= step && unit + 1 < units.size()) {
    amount /= step;
    ++unit;
  }
  return number_text(amount) + " " + units[unit];
}

struct Named {
  std::string_view name;
  int exit_code;
};

// By Status.
constexpr std::array<Named, 5> kStatuses = {
    {{"ok", 0}, {"skipped", 0}, {"warn", 1}, {"unknown", 3}, {"fail", 2}}};

}  // namespace

std::string bytes_text(std::int64_t bytes) {
  return scaled(bytes, 1000, {"B", "kB", "MB", "GB", "TB"});
}

std::string limit_text(std::int64_t bytes) {
  if (bytes < 0) return "unlimited";
  return scaled(bytes, 1024, {"B", "KiB", "MiB", "GiB", "TiB"});
}

std::string number_text(double number) {
  char text[32];
  const double size = std::abs(number);
  const int decimals = size >= 99.95 || size == std::floor(size) ? 0
                       : size >= 0.1                             ? 1
                       : size >= 0.01                            ? 2
                                                                 : 4;
  std::snprintf(text, sizeof text, "%.*f", decimals, number);
  return text;
}

std::string ms_text(double milliseconds) {
  if (std::abs(milliseconds) >= 1000) return number_text(milliseconds / 1000) + " s";
  return number_text(milliseconds) + " ms";
}

std::string_view to_string(Status status) {
  return kStatuses[static_cast<std::size_t>(status)].name;
}

int exit_code_of(Status status) { return kStatuses[static_cast<std::size_t>(status)].exit_code; }

HealthReport report_of_node(const NodeFacts& node, const Need& need) {
  HealthReport report{.hosts = {node.host}, .rows = {}};
  for (const Subject& subject : all_subjects()) {
    for (const Check& check : subject.checks) {
      for (Finding& finding : judge(subject, check, node.facts, need)) {
        report.rows.push_back({.group = subject.group, .finding = std::move(finding)});
      }
    }
  }
  return report;
}

// Several nodes.

namespace {

Rows unreachable(const Nodes& nodes) {
  std::vector<Cell> cells;
  std::string sentence;
  for (const NodeFacts& node : nodes) {
    const bool lost = !node.error.empty();
    cells.push_back({lost ? "no" : "yes", lost ? Status::kFail : Status::kOk});
    if (lost && sentence.empty()) sentence = node.error;
  }
  if (sentence.empty()) return {};
  Row row = row_of("ssh", std::move(cells));
  row.finding.note = sentence;
  return {row};
}

Rows comparisons(const Nodes& nodes, const Need& need) {
  std::multimap<Section, Comparison> in_order;  // Those of a section keep the subjects' order.
  for (const Subject& subject : all_subjects()) {
    for (const Comparison& one : subject.comparisons) in_order.emplace(one.section, one);
  }
  Rows rows = unreachable(nodes);
  for (const auto& [section, comparison] : in_order) {
    for (Row& row : comparison.compare(nodes, need)) rows.push_back(std::move(row));
  }
  for (Row& row : rows) row.compared = true;
  return rows;
}

// The findings of one name on all nodes. A node may have several of them, such as leftovers: the
// worst is shown.
struct OfName {
  std::vector<Cell> cells;
  Finding worst;
};

void add_finding(OfName& row, std::size_t node, Finding finding) {
  Cell& cell = row.cells[node];
  const bool first = cell.value.empty();
  if (first || finding.status > cell.status) cell = {finding.value, finding.status};
  if (row.worst.name.empty() || finding.status > row.worst.status) row.worst = std::move(finding);
}

void add_check(const Subject& subject, const Check& check, const Nodes& nodes, const Need& need,
               Rows& rows) {
  std::vector<std::string> order;
  std::map<std::string, OfName> found;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (!nodes[i].error.empty()) continue;
    for (Finding& finding : judge(subject, check, nodes[i].facts, need)) {
      auto [entry, is_new] = found.try_emplace(finding.name);
      if (is_new) order.push_back(finding.name);
      if (is_new) entry->second.cells.resize(nodes.size());
      add_finding(entry->second, i, std::move(finding));
    }
  }
  for (const std::string& name : order) {
    OfName& of_name = found.at(name);
    Row row = row_of(name, std::move(of_name.cells));
    row.finding = std::move(of_name.worst);
    rows.push_back(std::move(row));
  }
}

void name_nodes(const Nodes& nodes, Row& row) {
  DDPRUN_ASSERT(row.cells.size() == nodes.size());
  std::string names;
  std::size_t count = 0;
  for (std::size_t i = 0; i < nodes.size(); ++i) {
    if (row.cells[i].status != row.finding.status) continue;
    names += (names.empty() ? "on " : ", ") + nodes[i].host;
    ++count;
  }
  const bool good = row.finding.status <= Status::kSkipped;
  if (!good && count < nodes.size() && row.finding.name != "ssh") row.where = names;
}

}  // namespace

HealthReport report_of_nodes(const Nodes& nodes, const Need& need) {
  DDPRUN_ASSERT(!nodes.empty());
  HealthReport report{.hosts = {}, .rows = comparisons(nodes, need)};
  for (const NodeFacts& node : nodes) report.hosts.push_back(node.host);
  for (const Subject& subject : all_subjects()) {
    for (const Check& check : subject.checks) {
      if (check.if_several) add_check(subject, check, nodes, need, report.rows);
    }
  }
  for (Row& row : report.rows) name_nodes(nodes, row);
  std::stable_sort(report.rows.begin(), report.rows.end(), [](const Row& a, const Row& b) {
    const Status least = Status::kSkipped;  // Good rows keep their order.
    return std::max(a.finding.status, least) > std::max(b.finding.status, least);
  });
  return report;
}

Status worst_of(const HealthReport& report) {
  if (report.rows.empty()) return Status::kUnknown;
  const auto worst = std::max_element(
      report.rows.begin(), report.rows.end(),
      [](const Row& a, const Row& b) { return a.finding.status < b.finding.status; });
  return worst->finding.status;
}

namespace {

using Json = nlohmann::json;

Json to_json(const Row& row, const std::vector<std::string>& hosts) {
  const Finding& finding = row.finding;
  Json json = {{"name", finding.name},
               {"status", std::string(to_string(finding.status))},
               {"value", finding.value}};
  if (!finding.note.empty()) json["note"] = finding.note;
  if (!finding.cure.empty()) json["cure"] = finding.cure;
  if (!row.where.empty()) json["where"] = row.where;
  for (std::size_t i = 0; i < row.cells.size(); ++i) {
    json["values"][hosts[i]] = row.cells[i].value;
    json["statuses"][hosts[i]] = std::string(to_string(row.cells[i].status));
  }
  return json;
}

}  // namespace

std::string report_json(const HealthReport& report) {
  const Status worst = worst_of(report);
  // A check with nothing to judge does not make a good node worse.
  const Status verdict = worst == Status::kSkipped ? Status::kOk : worst;
  Json json = {{"status", std::string(to_string(verdict))},
               {"exit_code", exit_code_of(worst)},
               {"nodes", report.hosts},
               {"took_ms", report.took_ms},
               {"checks", Json::array()}};
  for (const Row& row : report.rows) json["checks"].push_back(to_json(row, report.hosts));
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

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
