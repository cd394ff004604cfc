#pragma once
// Text for screens: columns, colours and the bar of where time went, in UTF-8 or ASCII. Pure. Used
// by all that ddprunctl prints for people.

#include <string>
#include <string_view>
#include <vector>

#include "common/ledger/time_parts.h"

namespace ddprun::launcher {

struct ScreenStyle {
  int columns = 0;  // No line is wider; 0: any.
  bool colours = false;
  bool utf8 = true;

  std::string paint(std::string_view text, const char* sgr) const;
  const char* pick(const char* glyph, const char* ascii) const { return utf8 ? glyph : ascii; }
};

// In signs of UTF-8, which are all taken for one column wide.
std::size_t width_of(std::string_view text);
std::string fitted(std::string_view text, std::size_t columns);  // Cut off, or padded.

// Names and lines come from other machines: nothing in them may be obeyed by a terminal or break a
// line. "-" for nothing.
std::string plain(std::string_view text);

using Row = std::vector<std::string>;
// Each column as wide as its widest cell; the last one ends where its text ends.
std::string aligned(const std::vector<Row>& rows, const ScreenStyle& style = {});

// One line of a screen, of which what does not fit is left out.
class ScreenLine {
 public:
  explicit ScreenLine(const ScreenStyle& style) : style_(style) {}
  ScreenLine& add(std::string_view text, const char* sgr = nullptr);
  ScreenLine& at(std::size_t column);  // Blanks up to there.
  std::size_t width() const { return width_; }
  std::string take() { return std::move(text_); }

 private:
  ScreenStyle style_;
  std::string text_;
  std::size_t width_ = 0;
};

// Where the time of all ranks went: a sign for each `width`th of it, by part.
void add_time_bar(ScreenLine& line, const LedgerTotals& ledger, std::size_t width,
                  const ScreenStyle& style);
// "forward 26.0  backward 53.0": the parts that have some of it.
void add_time_legend(ScreenLine& line, const LedgerTotals& ledger, const ScreenStyle& style);

}  // namespace ddprun::launcher
