#include "launcher/run/report_columns.h"

#include <algorithm>
#include <cstdlib>

#include "common/text/screen.h"

namespace ddprun::launcher {
namespace {

// One step after the other, until the rows fit.
struct Layout {
  bool hosts = true, zeros = true, brief = false;
  std::size_t gap = 2;
  int left_out = 0;  // Columns that yield before or with this number.
};

bool is_zero(const ReportColumn& column) {
  return column.share && std::all_of(column.cells.begin(), column.cells.end(),
                                     [](const std::string& cell) { return cell == "0.0"; });
}

class Fitting {
 public:
  explicit Fitting(const std::vector<ReportColumn>& columns) : columns_(columns) {}

  const std::string& heading(const ReportColumn& column) const {
    return layout_.brief ? column.brief : column.name;
  }
  bool shown(const ReportColumn& column) const {
    if (&column == &columns_.back()) return layout_.hosts;
    if (!layout_.zeros && is_zero(column)) return false;
    return column.yields == 0 || column.yields > layout_.left_out;
  }
  std::size_t room(const ReportColumn& column) const {
    std::size_t widest = text_columns(heading(column));
    for (const std::string& cell : column.cells) widest = std::max(widest, text_columns(cell));
    return widest;
  }
  std::size_t width() const {
    std::size_t sum = 0;
    for (const ReportColumn& column : columns_) {
      if (shown(column)) sum += room(column) + (sum == 0 ? 0 : layout_.gap);
    }
    return sum;
  }
  void fit(std::size_t width);
  std::string rows() const;
  std::vector<std::string> notes() const;

 private:
  std::string line(std::size_t row) const;  // 0: the heading.

  const std::vector<ReportColumn>& columns_;
  Layout layout_;
};

void Fitting::fit(std::size_t width) {
  int last = 0;
  for (const ReportColumn& column : columns_) last = std::max(last, column.yields);
  if (this->width() > width) layout_.hosts = false;
  if (this->width() > width) layout_.zeros = false;
  if (this->width() > width) layout_.brief = true;
  if (this->width() > width) layout_.gap = 1;
  while (this->width() > width && layout_.left_out < last) ++layout_.left_out;
}

// Names and the first column to the left, numbers to the right.
std::string Fitting::line(std::size_t row) const {
  std::string text;
  for (const ReportColumn& column : columns_) {
    if (!shown(column)) continue;
    const std::string& cell = row == 0 ? heading(column) : column.cells[row - 1];
    const std::string blanks(room(column) - text_columns(cell), ' ');
    if (!text.empty()) text.append(layout_.gap, ' ');
    if (&column == &columns_.back())
      text += cell;
    else
      text += &column == &columns_.front() ? cell + blanks : blanks + cell;
  }
  return text + "\n";
}

std::string Fitting::rows() const {
  std::string text;
  for (std::size_t row = 0; row <= columns_.front().cells.size(); ++row) text += line(row);
  return text;
}

// What the cells of a column that is left out have: "1.2 to 3.4", or names.
std::string span_of(const ReportColumn& column, bool numbers) {
  std::vector<std::string> cells = column.cells;
  const auto value = [](const std::string& cell) { return std::strtod(cell.c_str(), nullptr); };
  std::sort(cells.begin(), cells.end(), [&](const std::string& a, const std::string& b) {
    return numbers ? value(a) < value(b) : a < b;
  });
  cells.erase(std::unique(cells.begin(), cells.end()), cells.end());
  if (numbers && cells.size() > 1) return cells.front() + " to " + cells.back();
  std::string text;
  for (const std::string& cell : cells) text += (text.empty() ? "" : ", ") + cell;
  return text;
}

void add_word(std::string& list, const std::string& word) {
  list += (list.empty() ? "" : ", ") + word;
}

std::vector<std::string> Fitting::notes() const {
  std::string brief, full, zeros, left_out, whole;
  for (const ReportColumn& column : columns_) {
    const bool last = &column == &columns_.back();
    if (!column.share && !last && shown(column)) add_word(whole, heading(column));
    if (last) continue;
    if (!shown(column)) {
      if (is_zero(column))
        add_word(zeros, column.name);
      else
        add_word(left_out, column.name + " " + span_of(column, true));
    } else if (heading(column) != column.name) {
      add_word(brief, heading(column)), add_word(full, column.name);
    }
  }
  std::vector<std::string> notes = {"all but " + whole + ": per cent of the wall time."};
  if (!layout_.hosts) notes.back() += " host: " + span_of(columns_.back(), false);
  if (!brief.empty()) notes.push_back(brief + ": " + full + ".");
  if (!zeros.empty()) notes.push_back("0.0 for all ranks: " + zeros + ".");
  if (!left_out.empty()) {
    notes.push_back("left out, from the lowest to the highest: " + left_out +
                    "; in a pipe all columns are printed.");
  }
  return notes;
}

}  // namespace

std::string wide_columns(const std::vector<ReportColumn>& columns) {
  std::string text;
  for (std::size_t row = 0; row <= columns.front().cells.size(); ++row) {
    for (const ReportColumn& column : columns) {
      const bool first = &column == &columns.front(), last = &column == &columns.back();
      const std::string& cell = row == 0 ? column.name : column.cells[row - 1];
      const std::size_t taken = text_columns(cell);
      const std::string blanks(column.room - std::min(column.room, taken), ' ');
      text += last ? "   " + cell : first ? cell + blanks : " " + blanks + cell;
    }
    text += "\n";
  }
  return text;
}

FittedColumns fitted_columns(const std::vector<ReportColumn>& columns, std::size_t width) {
  Fitting fitting(columns);
  fitting.fit(width);
  return {fitting.rows(), fitting.notes()};
}

}  // namespace ddprun::launcher
