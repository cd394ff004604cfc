#pragma once
// The screen of `ddprunctl top`: one run, its nodes and ranks, late ranks, use of time, events.
// Pure.

#include <string>
#include <string_view>
#include <vector>

#include "common/ledger/time_parts.h"
#include "common/text/display.h"
#include "rendezvous/run/status.h"

namespace ddprun::launcher {

// Text for screens: columns, colours and the bar for the use of time, in UTF-8 or ASCII. Pure. Used
// by all output of ddprunctl for people.
struct ScreenStyle {
  int columns = 0;  // No line is wider; 0: any.
  bool colours = false;
  bool utf8 = true;

  std::string paint(std::string_view text, const char* sgr) const;
  const char* pick(const char* glyph, const char* ascii) const { return utf8 ? glyph : ascii; }
};

// A name or a sentence from outside as a field of a screen: plain_line(), and "-" if it is empty.
std::string cell_text(std::string_view text);

// A table with its heading. On a terminal no line is wider than that: columns are left out, least
// needed first, then the last one is clipped. In a pipe only the last one is, at 120 columns. `sgr`
// is the style of a row's first cell; may be empty.
std::string table_text(const std::vector<TableColumn>& columns, const std::vector<TableRow>& rows,
                       const ScreenStyle& style, const std::vector<const char*>& sgr = {});

// One line of a screen; if the text does not fit, it ends with "…".
class ScreenLine {
 public:
  explicit ScreenLine(const ScreenStyle& style) : style_(style) {}
  ScreenLine& add(std::string_view text, const char* sgr = nullptr);
  ScreenLine& at(std::size_t column);  // Blanks up to there.
  // Adds the fields that fit, two blanks apart; the least needed are left out first.
  ScreenLine& add_fields(std::vector<LineField> fields);
  std::size_t width() const { return width_; }
  std::string take() { return std::move(text_); }

 private:
  ScreenStyle style_;
  std::string text_;
  std::size_t width_ = 0;
};

// The use of all ranks' time: one sign per `width`th of it, by part.
void add_time_bar(ScreenLine& line, const LedgerTotals& ledger, std::size_t width,
                  const ScreenStyle& style);
// "forward 26.0  backward 53.0": the parts that are not zero, in at most `lines` lines, which begin
// with a blank; the smallest parts are left out if they do not fit.
std::vector<std::string> time_legend(const LedgerTotals& ledger, const ScreenStyle& style,
                                     std::size_t lines);

// The help for the keys and columns of `ddprunctl top`. Pure. Used by top_screen.cc.
std::vector<std::string> top_help(const ScreenStyle& style);

enum class TopOrder {
  kRank,
  kLate,  // First the ranks that the others wait for.
};

struct TopView {
  ScreenStyle style{};
  int lines = 0;  // Of the terminal; 0: any, and all ranks, without keys.
  TopOrder order = TopOrder::kRank;
  std::size_t run = 0;       // Index of the run.
  std::size_t chosen = 0;    // Index of the node, in the order of the screen.
  std::string open_node{};   // The id of the node that shows its ranks.
  bool paused = false;
  bool help = false;  // Show the help instead of nodes and events.
};

// How many nodes there are to choose from, and the id of the chosen one; empty: there is none.
std::string chosen_node(const rendezvous::DaemonStatus& status, const TopView& view);

// Lines without their ends, at most `lines` and none wider than `columns`.
std::vector<std::string> top_screen(const rendezvous::DaemonStatus& status, const TopView& view);

}  // namespace ddprun::launcher
