#include "launcher/watch/screen_text.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/text/figures.h"
#include "common/text/screen.h"

namespace ddprun::launcher {
namespace {

struct Look {
  TimePart part;
  const char* glyph;
  const char* ascii;
  const char* colour;
};

// In the order of the bar; the palette of all screens.
constexpr Look kLooks[] = {
    {TimePart::kForward, "▓", "f", "94"},    {TimePart::kBackward, "█", "b", "34"},
    {TimePart::kOutside, "▒", "o", "34"},    {TimePart::kSteps, "▆", "k", "94"},
    {TimePart::kTransfer, "▚", "t", "33"},   {TimePart::kWaiting, "·", "w", "93"},
    {TimePart::kCheckpoint, "▪", "c", "36"}, {TimePart::kLost, "╱", "x", "31"},
    {TimePart::kRestart, "▌", "R", "91"},    {TimePart::kStartup, "░", "s", "90"},
    {TimePart::kRendezvous, "░", "s", "90"}, {TimePart::kEnd, "░", "e", "90"},
    {TimePart::kUnknown, "┄", "?", "90"}};
constexpr std::size_t kLookCount = std::size(kLooks);

// Numbers that add up to `whole`, as close as possible to the shares.
std::vector<std::size_t> divided(const std::vector<double>& shares, std::size_t whole) {
  std::vector<std::size_t> parts(shares.size()), order(shares.size());
  std::vector<double> rest(shares.size());
  std::size_t given = 0;
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const double exact = shares[i] * static_cast<double>(whole);
    parts[i] = static_cast<std::size_t>(exact);
    rest[i] = exact - std::floor(exact);
    given += parts[i];
  }
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return rest[a] > rest[b]; });
  for (std::size_t i = 0; given < whole && i < order.size() && rest[order[i]] > 0; ++i, ++given) {
    ++parts[order[i]];
  }
  return parts;
}

}  // namespace

std::string ScreenStyle::paint(std::string_view text, const char* sgr) const {
  if (!colours || !sgr || text.empty()) return std::string(text);
  return std::string("\x1b[") + sgr + "m" + std::string(text) + "\x1b[0m";
}

std::string cell_text(std::string_view text) { return text.empty() ? "-" : plain_line(text); }

std::string table_text(const std::vector<TableColumn>& columns, const std::vector<TableRow>& rows,
                       const ScreenStyle& style, const std::vector<const char*>& sgr) {
  constexpr std::size_t kGap = 2, kPipeLastMax = 120;
  const auto width = static_cast<std::size_t>(std::max(style.columns, 0));
  const auto widths = table_widths(columns, rows, width, kGap);
  const auto line_of = [&](const TableRow& row, const char* look) {
    ScreenLine line(style);
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (!widths[i]) continue;
      const bool last = i + 1 == row.size();
      if (last && width == 0) {
        line.add(clipped(row[i], kPipeLastMax, style.utf8));
      } else if (last) {
        line.add(row[i]);
      } else {
        const std::string cell = clipped(row[i], *widths[i], style.utf8);
        line.add(cell, i == 0 ? look : nullptr);
        line.add(std::string(*widths[i] + kGap - text_columns(cell), ' '));
      }
    }
    std::string text = line.take();
    while (text.ends_with(' ')) text.pop_back();
    return text + "\n";
  };
  TableRow names;
  for (const TableColumn& column : columns) names.push_back(column.name);
  std::string text = line_of(names, nullptr);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    text += line_of(rows[i], i < sgr.size() ? sgr[i] : nullptr);
  }
  return text;
}

ScreenLine& ScreenLine::add(std::string_view text, const char* sgr) {
  const auto columns = static_cast<std::size_t>(std::max(style_.columns, 0));
  const std::size_t room = columns - std::min(columns, width_);
  const bool blank = text.find_first_not_of(' ') == std::string_view::npos;
  const std::string shown = columns == 0 ? std::string(text)
                            : blank      ? std::string(first_columns(text, room))
                                         : clipped(text, room, style_.utf8);
  text_ += style_.paint(shown, sgr);
  width_ += text_columns(shown);
  return *this;
}

ScreenLine& ScreenLine::add_fields(std::vector<LineField> fields) {
  constexpr std::size_t kGap = 2;
  const auto columns = static_cast<std::size_t>(std::max(style_.columns, 0));
  if (columns > 0) keep_fields(fields, std::max(columns, width_ + 1) - width_, kGap);
  for (std::size_t i = 0; i < fields.size(); ++i) {
    if (i > 0) add(std::string(kGap, ' '));
    add(fields[i].text, fields[i].sgr);
  }
  return *this;
}

ScreenLine& ScreenLine::at(std::size_t column) {
  return column > width_ ? add(std::string(column - width_, ' ')) : *this;
}

void add_time_bar(ScreenLine& line, const LedgerTotals& ledger, std::size_t width,
                  const ScreenStyle& style) {
  std::vector<double> shares;
  for (const Look& look : kLooks) shares.push_back(ledger.share(look.part));
  const std::vector<std::size_t> signs = divided(shares, width);
  for (std::size_t i = 0; i < kLookCount; ++i) {
    std::string bar;
    for (std::size_t n = 0; n < signs[i]; ++n) bar += style.pick(kLooks[i].glyph, kLooks[i].ascii);
    line.add(bar, kLooks[i].colour);
  }
}

std::vector<std::string> time_legend(const LedgerTotals& ledger, const ScreenStyle& style,
                                     std::size_t lines) {
  constexpr double kShownMin = 0.0005;
  struct Entry {
    const Look* look;
    std::string text;
    double share;
  };
  std::vector<Entry> entries;
  for (const Look& look : kLooks) {
    const double share = ledger.share(look.part);
    if (share < kShownMin) continue;
    std::string percent = percent_text(share);
    percent.erase(percent.size() - 2);
    entries.push_back({&look, std::string(" ") + label_of(look.part) + " " + percent, share});
  }
  const auto columns = static_cast<std::size_t>(std::max(style.columns, 0));
  for (;;) {
    std::vector<ScreenLine> drawn(1, ScreenLine(style));
    drawn.back().add(" ");
    for (const Entry& entry : entries) {
      const std::size_t wanted = 1 + text_columns(entry.text);
      const bool begins = drawn.back().width() == 1;
      if (columns > 0 && !begins && drawn.back().width() + 2 + wanted > columns) {
        drawn.emplace_back(style).add(" ");
      } else if (!begins) {
        drawn.back().add("  ");
      }
      drawn.back().add(style.pick(entry.look->glyph, entry.look->ascii), entry.look->colour);
      drawn.back().add(entry.text);
    }
    if (drawn.size() > lines && entries.size() > 1) {
      entries.erase(std::ranges::min_element(entries, {}, &Entry::share));
      continue;
    }
    std::vector<std::string> text;
    for (ScreenLine& line : drawn) text.push_back(line.take());
    return text;
  }
}

}  // namespace ddprun::launcher
