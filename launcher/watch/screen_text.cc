#include "launcher/watch/screen_text.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/text/figures_text.h"
#include "common/text/terminal_text.h"

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
    {TimePart::kOutside, "▒", "o", "34"},    {TimePart::kSteps, "█", "k", "34"},
    {TimePart::kTransfer, "▚", "t", "33"},   {TimePart::kWaiting, "·", "w", "93"},
    {TimePart::kCheckpoint, "▪", "c", "36"}, {TimePart::kLost, "╱", "x", "31"},
    {TimePart::kRestart, "▌", "R", "91"},    {TimePart::kStartup, "░", "s", "90"},
    {TimePart::kRendezvous, "░", "s", "90"}, {TimePart::kEnd, "░", "e", "90"},
    {TimePart::kUnknown, "?", "?", "90"}};
constexpr std::size_t kLookCount = std::size(kLooks);

bool begins_sign(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

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

std::size_t width_of(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), begins_sign));
}

std::string fitted(std::string_view text, std::size_t columns) {
  std::size_t end = 0, seen = 0;
  for (; end < text.size(); ++end) {
    if (begins_sign(text[end]) && seen++ == columns) break;
  }
  std::string cut(text.substr(0, end));
  return cut + std::string(columns - std::min(columns, width_of(cut)), ' ');
}

std::string plain(std::string_view text) {
  std::string safe(text);
  for (char& letter : safe) {
    if (static_cast<unsigned char>(letter) < ' ' || letter == '\x7f') letter = '?';
  }
  // What is left of orders are those of 0x80 to 0x9f.
  return safe.empty() ? "-" : without_escapes(safe);
}

std::string aligned(const std::vector<Row>& rows, const ScreenStyle& style) {
  std::vector<std::size_t> widths(rows.empty() ? 0 : rows.front().size());
  for (const Row& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], width_of(row[i]));
  }
  std::string text;
  for (const Row& row : rows) {
    ScreenLine line(style);
    for (std::size_t i = 0; i < row.size(); ++i) {
      const bool last = i + 1 == row.size();
      line.add(last ? row[i] : fitted(row[i], widths[i] + 2));
    }
    text += line.take() + "\n";
  }
  return text;
}

ScreenLine& ScreenLine::add(std::string_view text, const char* sgr) {
  const std::size_t wanted = width_of(text);
  const auto columns = static_cast<std::size_t>(std::max(style_.columns, 0));
  const std::size_t room = columns == 0 ? wanted : columns - std::min(columns, width_);
  text_ += style_.paint(wanted <= room ? std::string(text) : fitted(text, room), sgr);
  width_ += std::min(wanted, room);
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

void add_time_legend(ScreenLine& line, const LedgerTotals& ledger, const ScreenStyle& style) {
  constexpr double kShownMin = 0.0005;
  for (const Look& look : kLooks) {
    const double share = ledger.share(look.part);
    if (share < kShownMin) continue;
    std::string percent = percent_text(share);
    percent.erase(percent.size() - 2);
    const std::string text = std::string(" ") + label_of(look.part) + " " + percent;
    const std::size_t end = line.width() + 1 + width_of(text);
    if (style.columns > 0 && end > static_cast<std::size_t>(style.columns)) return;  // Not halves.
    line.add(style.pick(look.glyph, look.ascii), look.colour).add(text + "  ");
  }
}

}  // namespace ddprun::launcher
