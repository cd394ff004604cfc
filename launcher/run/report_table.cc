#include "launcher/run/report_table.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <vector>

#include "common/text/display.h"
#include "common/text/figures.h"

namespace ddprun::launcher {
namespace {

struct Row {
  TimePart part;
  const char* meaning;
};

// In the order of a report.
constexpr Row kRows[] = {{TimePart::kForward, "of kept steps"},
                         {TimePart::kBackward, "of kept steps"},
                         {TimePart::kOutside, "of kept steps: optimizer, data"},
                         {TimePart::kTransfer, "of gradients, not hidden"},
                         {TimePart::kWaiting, "for the last rank"},
                         {TimePart::kSteps, "kept, not taken apart"},
                         {TimePart::kCheckpoint, "training stood still for it"},
                         {TimePart::kLost, "since the last checkpoint, then undone"},
                         {TimePart::kRestart, "from a failure or change to the next step"},
                         {TimePart::kStartup, "until the first step"},
                         {TimePart::kRendezvous, "until all nodes were there"},
                         {TimePart::kEnd, "after the last step, until the end"},
                         {TimePart::kUnknown, "the workers reported nothing"}};

// The rows with their first `cells` cells. `near`: as close together as possible, not as in a wide
// terminal.
std::string rows_of(const LedgerTotals& ledger, std::size_t cells, bool near) {
  std::vector<std::array<std::string, 4>> rows;
  std::array<std::size_t, 4> rooms = {12, 8, 14, 0};
  if (near) rooms = {};
  for (const Row& row : kRows) {
    if (ledger.parts[row.part].count() == 0) continue;
    rows.push_back({label_of(row.part), percent_text(ledger.share(row.part)),
                    rank_time_text(ledger.parts[row.part]), row.meaning});
    for (std::size_t i = 0; i < 3; ++i) rooms[i] = std::max(rooms[i], rows.back()[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    text += "  " + row[0] + std::string(rooms[0] - row[0].size(), ' ');
    for (std::size_t i = 1; i < cells; ++i) {
      const std::size_t gap = i == 1 && !near ? 1 : 2;
      const std::size_t blanks = i == 3 ? 0 : rooms[i] - row[i].size();
      text += std::string(gap + blanks, ' ') + row[i];
    }
    text += "\n";
  }
  return text;
}

std::string fitted_rows(const LedgerTotals& ledger, std::size_t width) {
  std::string text = rows_of(ledger, 4, false);
  if (fits_columns(text, width)) return text;
  for (std::size_t cells = 4; cells > 1; --cells) {
    text = rows_of(ledger, cells, true);
    if (fits_columns(text, width)) break;
  }
  return text;
}

}  // namespace

std::string ledger_text(const LedgerTotals& ledger, std::size_t width) {
  if (ledger.in_run().count() == 0) return "";
  const std::string goodput = ledger.has_goodput()
                                  ? "goodput " + percent_text(ledger.goodput()) + " of "
                                  : "goodput not known: no rank reported steps; ";
  const std::string first = goodput + rank_time_text(ledger.in_run()) +
                            ", of all ranks, starts and restarts, in " + took_text(ledger.wall);
  const auto paragraph = [width](const std::string& sentence) {
    std::string text;
    for (const std::string& line : wrapped_lines(sentence, width == 0 ? sentence.size() : width)) {
      text += line + "\n";
    }
    return text;
  };
  std::string text = paragraph(first) + fitted_rows(ledger, width);
  for (const std::string& line : start_lines(ledger.starts)) text += paragraph(line);
  const std::string shards = shard_line(ledger.shards);
  return shards.empty() ? text : text + paragraph(shards);
}

namespace {

// The steps of narrowing, taken one after the other until the rows fit.
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

// The range of the cells of a column that is left out: "1.2 to 3.4", or names.
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

namespace {

constexpr std::size_t kSummaryBytesMax = 64 * 1024;
constexpr double kSecondsMax = 1e9;

constexpr std::size_t kProseWidth = 100;

constexpr const char* kLegend =
    "startup: until the first step; outside: optimizer, data, anything between steps; waiting: for "
    "gradients, until the last rank had come; transfer: for gradients, the rest of it; rest: "
    "after the last step.";
constexpr const char* kParted =
    "data, optimizer: what of outside is known to be the data loader's and the optimizer's.";
constexpr const char* kUnknown =
    "unknown: for gradients, in steps of no complete window: waiting or transfer.";
constexpr const char* kNoSummary =
    "no rank of this node left a summary: only programs that train with PyTorch or with ddprun's "
    "DistributedDataParallel and end it do";

// Headings for narrow terminals, and the order in which columns are left out there, in the order of
// kParts: the cost of the wait for gradients stays longest.
constexpr std::array<const char*, RankTime::kParts.size()> kBrief = {
    "start", "out", "fwd", "bwd", "wait", "xfer", "unkn", "data", "optim", "rest"};
constexpr std::array<int, RankTime::kParts.size()> kYields = {3, 7, 8, 9, 11, 10, 2, 5, 6, 1};
constexpr int kStepsYield = 4;

const std::set<std::string> kPhases = {"outside", "data", "forward", "backward", "optimizer"};

// Parts that not every program measures, and that older SDKs omit.
bool may_be_missing(std::size_t part) {
  return part == RankTime::kData || part == RankTime::kOptimizer || part == RankTime::kUnknown;
}

std::vector<RankTime::Late> read_late(const nlohmann::json& list) {
  std::vector<RankTime::Late> result;
  for (const auto& item : list) {
    RankTime::Late late{.rank = item.at("rank").get<int>(),
                        .steps = item.at("steps").get<long long>(),
                        .seconds = item.at("late_s").get<double>(),
                        .phase = item.at("phase").get<std::string>()};
    if (kPhases.contains(late.phase) && late.steps > 0 && late.seconds >= 0 &&
        late.seconds <= kSecondsMax) {
      result.push_back(std::move(late));
    }
  }
  return result;
}

// All ranks have seen the same windows; one that ended early has seen fewer.
std::vector<std::string> late_lines(const std::vector<RankTime>& ranks) {
  const auto most = std::max_element(
      ranks.begin(), ranks.end(), [](auto& a, auto& b) { return a.window_steps < b.window_steps; });
  std::vector<std::string> lines;
  for (const RankTime::Late& late : most->late) {
    char line[160];
    std::snprintf(line, sizeof line, "rank %d was last in %lld of %lld steps, %.1f ms each, in ",
                  late.rank, late.steps, most->window_steps,
                  1e3 * late.seconds / static_cast<double>(late.steps));
    lines.push_back(line + late.phase);
  }
  return lines;
}

}  // namespace

double RankTime::wall() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }

std::optional<RankTime> read_summary(const std::string& text) {
  if (text.size() > kSummaryBytesMax) return std::nullopt;
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::nullopt;
  RankTime result;
  try {
    result.rank = json.at("rank").get<int>();
    result.host = json.at("host").get<std::string>();
    result.restart_count = json.at("restart_count").get<int>();
    result.steps = json.at("steps").get<long long>();
    for (std::size_t p = 0; p < result.seconds.size(); ++p) {
      const std::string name = std::string(RankTime::kParts[p]) + "_s";
      const bool old = may_be_missing(p) && !json.contains(name);
      const double value = old ? 0 : json.at(name).get<double>();
      if (!(value >= -kSecondsMax && value <= kSecondsMax)) return std::nullopt;
      result.seconds[p] = std::max(0.0, value);
    }
    result.window_steps = json.value("window_steps", 0LL);
    result.late = read_late(json.value("late", nlohmann::json::array()));
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
  return result;
}

std::vector<int> per_mille(const std::vector<double>& parts) {
  const double whole = std::accumulate(parts.begin(), parts.end(), 0.0);
  std::vector<int> result(parts.size(), 0);
  if (!(whole > 0)) return result;
  std::vector<std::pair<double, std::size_t>> lost;  // What rounding down removed, and its index.
  int sum = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const double exact = 1000 * parts[i] / whole;
    result[i] = static_cast<int>(std::floor(exact));
    sum += result[i];
    lost.emplace_back(exact - std::floor(exact), i);
  }
  if (lost.empty()) return result;
  std::sort(lost.rbegin(), lost.rend());
  for (std::size_t k = 0; sum < 1000; ++k, ++sum) ++result[lost[k % lost.size()].second];
  return result;
}

namespace {

bool has(const std::vector<RankTime>& ranks, std::size_t part) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [part](const RankTime& rank) { return rank.seconds[part] > 0; });
}

bool is_column(const std::vector<RankTime>& ranks, std::size_t part) {
  const bool optional = part == RankTime::kData || part == RankTime::kOptimizer;
  return !optional || has(ranks, part);
}

std::string text_of(const char* format, auto value) {
  char cell[96];
  std::snprintf(cell, sizeof cell, format, value);
  return cell;
}

std::vector<ReportColumn> columns_of(const std::vector<RankTime>& ranks) {
  std::vector<ReportColumn> columns = {
      {.name = "rank", .brief = "rank", .room = 6},
      {.name = "wall s", .brief = "wall s", .room = 9},
      {.name = "steps", .brief = "steps", .room = 8, .yields = kStepsYield}};
  for (std::size_t p = 0; p < RankTime::kParts.size(); ++p) {
    if (!is_column(ranks, p)) continue;
    columns.push_back({.name = RankTime::kParts[p],
                       .brief = kBrief[p],
                       .room = 9,
                       .yields = kYields[p],
                       .share = true});
  }
  columns.push_back({.name = "per cent of the wall time"});
  for (const RankTime& rank : ranks) {
    std::vector<std::string> cells = {std::to_string(rank.rank), text_of("%.2f", rank.wall()),
                                      std::to_string(rank.steps)};
    const auto shares = per_mille({rank.seconds.begin(), rank.seconds.end()});
    for (std::size_t p = 0; p < shares.size(); ++p) {
      if (is_column(ranks, p)) cells.push_back(text_of("%.1f", shares[p] / 10.0));
    }
    cells.push_back(rank.host);
    for (std::size_t i = 0; i < cells.size(); ++i) columns[i].cells.push_back(std::move(cells[i]));
  }
  return columns;
}

}  // namespace

std::string report_table(std::vector<RankTime> ranks, std::size_t width) {
  const std::size_t prose = width == 0 ? kProseWidth : std::min(width, kProseWidth);
  std::string text;
  std::vector<std::string> notes;
  if (ranks.empty()) notes = {kNoSummary};
  if (!ranks.empty()) {
    std::sort(ranks.begin(), ranks.end(), [](auto& a, auto& b) { return a.rank < b.rank; });
    std::vector<ReportColumn> columns = columns_of(ranks);
    text = wide_columns(columns);
    if (!fits_columns(text, width)) {
      columns.back().name = columns.back().brief = "host";
      auto fitted = fitted_columns(columns, width);
      text = std::move(fitted.rows), notes = std::move(fitted.notes);
    }
    notes.push_back(kLegend);
    if (has(ranks, RankTime::kData) || has(ranks, RankTime::kOptimizer)) notes.push_back(kParted);
    if (has(ranks, RankTime::kUnknown)) notes.push_back(kUnknown);
    for (std::string& line : late_lines(ranks)) notes.push_back(std::move(line));
  }
  for (const std::string& note : notes) {
    for (const std::string& line : wrapped_lines(note, prose)) text += line + "\n";
  }
  return text;
}

}  // namespace ddprun::launcher
