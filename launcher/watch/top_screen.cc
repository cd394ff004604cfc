#include "launcher/watch/top_screen.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/text/display.h"
#include "common/text/figures.h"

namespace ddprun::launcher {
namespace {

struct PartStyle {
  TimePart part;
  const char* glyph;
  const char* ascii;
  const char* colour;
};

// In the order of the bar; the palette of all screens.
constexpr PartStyle kStyles[] = {
    {TimePart::kForward, "▓", "f", "94"},    {TimePart::kBackward, "█", "b", "34"},
    {TimePart::kOutside, "▒", "o", "34"},    {TimePart::kSteps, "▆", "k", "94"},
    {TimePart::kTransfer, "▚", "t", "33"},   {TimePart::kWaiting, "·", "w", "93"},
    {TimePart::kCheckpoint, "▪", "c", "36"}, {TimePart::kLost, "╱", "x", "31"},
    {TimePart::kRestart, "▌", "R", "91"},    {TimePart::kStartup, "░", "s", "90"},
    {TimePart::kRendezvous, "░", "s", "90"}, {TimePart::kEnd, "░", "e", "90"},
    {TimePart::kUnknown, "┄", "?", "90"}};
constexpr std::size_t kStyleCount = std::size(kStyles);

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
  const auto line_of = [&](const TableRow& row, const char* style_of_part) {
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
        line.add(cell, i == 0 ? style_of_part : nullptr);
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
  for (const PartStyle& style_of_part : kStyles) shares.push_back(ledger.share(style_of_part.part));
  const std::vector<std::size_t> signs = divided(shares, width);
  for (std::size_t i = 0; i < kStyleCount; ++i) {
    std::string bar;
    for (std::size_t n = 0; n < signs[i]; ++n)
      bar += style.pick(kStyles[i].glyph, kStyles[i].ascii);
    line.add(bar, kStyles[i].colour);
  }
}

std::vector<std::string> time_legend(const LedgerTotals& ledger, const ScreenStyle& style,
                                     std::size_t lines) {
  constexpr double kShownMin = 0.0005;
  struct Entry {
    const PartStyle* style_of_part;
    std::string text;
    double share;
  };
  std::vector<Entry> entries;
  for (const PartStyle& style_of_part : kStyles) {
    const double share = ledger.share(style_of_part.part);
    if (share < kShownMin) continue;
    std::string percent = percent_text(share);
    percent.erase(percent.size() - 2);
    entries.push_back(
        {&style_of_part, std::string(" ") + label_of(style_of_part.part) + " " + percent, share});
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
      drawn.back().add(style.pick(entry.style_of_part->glyph, entry.style_of_part->ascii),
                       entry.style_of_part->colour);
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

namespace {

struct KeyHelp {
  const char *keys, *ascii, *meaning;
};
constexpr KeyHelp kKeys[] = {
    {"↑ ↓ j k", "j k", "choose a node"},
    {"→ Enter", "Enter", "open or close the ranks of that node"},
    {"←", "Left", "close them"},
    {"Tab", "Tab", "the next run"},
    {"o", "o", "late nodes first, or by rank again"},
    {"p Space", "p Space", "pause: the screen is not updated"},
    {"? h", "? h", "this page, and back"},
    {"q Esc Ctrl-C", "q Esc Ctrl-C", "end"},
    {"", "", ""},
    {"LATE", "LATE", "how long the others wait for it, a step, lately"},
    {"CPU", "CPU", "processors that its process occupies, 100 % each; from 90 columns on"},
    {"MEMORY", "MEMORY", "resident, of its process; from 100 columns on"},
    {"SHARDS", "SHARDS", "of its last step, in an elastic job; from 110 columns on"},
    {"NOW", "NOW", "a node's phase; of a rank what its time counts as"}};
constexpr std::size_t kKeyColumns = 14;

}  // namespace

std::vector<std::string> top_help(const ScreenStyle& style) {
  std::vector<std::string> lines = {""};
  for (const KeyHelp& key : kKeys) {
    ScreenLine line(style);
    line.add(" " + fitted(style.pick(key.keys, key.ascii), kKeyColumns), "1").add(key.meaning);
    lines.push_back(line.take());
  }
  return lines;
}

namespace {

using rendezvous::DaemonStatus;
using rendezvous::NodeStatus;
using rendezvous::RankStatus;
using rendezvous::RunStatus;

constexpr std::size_t kBarMax = 120;
constexpr std::size_t kEventsMax = 8;
constexpr std::size_t kHostColumns = 16;
// Columns of the terminal from which on there is room for a field; node and phase have always room.
constexpr int kLateFrom = 37, kStepFrom = 48, kRanksFrom = 60, kRateFrom = 69, kCpuFrom = 90,
              kMemoryFrom = 100, kShardsFrom = 110;
constexpr double kEtaMax = 1e7;  // Seconds: longer is not a forecast.

bool is_late(const RankStatus& rank) { return rendezvous::is_late(rank.late_ms, rank.steps_per_s); }

// The rank that the others of the node wait for longest; null: none.
const RankStatus* latest_of(const NodeStatus& node) {
  const RankStatus* latest = nullptr;
  for (const RankStatus& rank : node.ranks) {
    if (is_late(rank) && (!latest || rank.late_ms > latest->late_ms)) latest = &rank;
  }
  return latest;
}

double lateness(const NodeStatus& node) {
  const RankStatus* latest = latest_of(node);
  return latest ? latest->late_ms : 0;
}

std::vector<const NodeStatus*> ordered(const RunStatus& run, TopOrder order) {
  std::vector<const NodeStatus*> nodes;
  for (const NodeStatus& node : run.nodes) nodes.push_back(&node);
  if (order == TopOrder::kLate) {
    std::stable_sort(nodes.begin(), nodes.end(), [](const NodeStatus* a, const NodeStatus* b) {
      return lateness(*a) > lateness(*b);
    });
  }
  return nodes;
}

const char* state_colour(const std::string& state) {
  return state == "running" ? "32" : state == "ended" ? "90" : "33";
}

class Screen {
 public:
  Screen(const RunStatus& run, const TopView& view, std::size_t runs)
      : run_(run), view_(view), style_(view.style), runs_(runs) {}

  std::vector<std::string> take() {
    head();
    time_bar();
    if (view_.help && view_.lines > 0) {
      for (std::string& line : top_help(style_)) lines_.push_back(std::move(line));
    } else {
      table();
      events();
    }
    keys();
    return std::move(lines_);
  }

 private:
  ScreenLine line() const { return ScreenLine(style_); }
  void put(ScreenLine line) { lines_.push_back(line.take()); }

  std::size_t left(std::size_t kept) const {
    const auto all = static_cast<std::size_t>(view_.lines);
    return all > lines_.size() + kept ? all - lines_.size() - kept : 0;
  }

  void head() {
    ScreenLine first = line();
    first.add(" ");
    std::vector<LineField> fields = {
        {cell_text(run_.run_id), 9, "1"},
        {style_.pick("● ", "* ") + cell_text(run_.state), 8, state_colour(run_.state)}};
    if (!run_.nodes.empty()) {
      const auto nodes = static_cast<int>(run_.nodes.size());
      fields.push_back({number_of(run_.world_size, "rank") + " on " + number_of(nodes, "node"), 5});
      fields.push_back({"round " + std::to_string(run_.round), 3});
      fields.push_back({"restart " + std::to_string(run_.restart_count) + " of " +
                            std::to_string(run_.max_restarts),
                        4});
    }
    if (run_.ledger) {
      fields.push_back({clock_text(std::chrono::duration<double>(run_.ledger->wall).count()), 6});
    }
    if (runs_ > 1) {
      fields.push_back(
          {"(run " + std::to_string(view_.run + 1) + " of " + std::to_string(runs_) + ")", 7});
    }
    put(std::move(first.add_fields(std::move(fields))));
    progress();
  }

  // Shows why there are no steps, which may be a long sentence.
  void waiting() {
    constexpr std::size_t kLinesMax = 3;
    const auto columns = static_cast<std::size_t>(std::max(style_.columns, 0));
    const std::string text = cell_text(run_.waiting_for);
    std::vector<std::string> lines = {text};
    if (columns > 1) lines = wrapped_lines(text, columns - 1);
    if (view_.lines > 0 && lines.size() > kLinesMax) {
      lines.resize(kLinesMax);
      lines.back() += " " + std::string(style_.pick("…", "..."));
    }
    for (const std::string& one : lines) put(std::move(line().add(" " + one)));
  }

  void progress() {
    if (!run_.step) return waiting();
    std::string step = "step " + steps(*run_.step);
    if (run_.steps_left > 0) step += " of " + steps(*run_.step + run_.steps_left);
    std::vector<LineField> fields = {{step, 9}};
    if (run_.steps_per_s > 0) fields.push_back({rate_text(run_.steps_per_s) + " steps/s", 6});
    const auto left = rendezvous::seconds_left(run_);
    if (left) fields.push_back({clock_text(std::min(*left, kEtaMax)) + " left", 7});
    const RankStatus* latest = nullptr;
    for (const NodeStatus& node : run_.nodes) {
      const RankStatus* of_node = latest_of(node);
      if (of_node && (!latest || of_node->late_ms > latest->late_ms)) latest = of_node;
    }
    if (latest) {
      const std::string text =
          "late: rank " + std::to_string(latest->rank) + ", " + late(latest) + " a step";
      fields.push_back({text + phase_of(latest->rank), 8, "1"});
      std::size_t width = 1;
      for (const LineField& field : fields) width += text_columns(field.text) + 2;
      if (style_.columns > 0 && width > static_cast<std::size_t>(style_.columns) + 2) {
        fields.back().text = text;
      }
    }
    put(std::move(line().add(" ").add_fields(std::move(fields))));
  }

  // ", in forward", if the source of the status knows it.
  std::string phase_of(int rank) const {
    if (!run_.late) return "";
    const auto here = std::ranges::find(*run_.late, rank, &rendezvous::LateStatus::rank);
    return here == run_.late->end() || here->phase.empty() ? "" : ", in " + cell_text(here->phase);
  }

  void time_bar() {
    if (!run_.ledger || run_.ledger->in_run().count() == 0) return;
    ScreenLine bar = line();
    const bool kept = run_.ledger->parts.kept().count() > 0;
    bar.add(" goodput " + (kept ? percent_text(run_.ledger->goodput()) : "-") + "  ");
    const auto columns = static_cast<std::size_t>(style_.columns > 0 ? style_.columns : 80);
    const std::size_t room = columns > bar.width() + 1 ? columns - bar.width() - 1 : 0;
    add_time_bar(bar, *run_.ledger, std::min(room, kBarMax), style_);
    put(std::move(bar));
    constexpr int kLowScreen = 16;
    const bool low = view_.lines > 0 && view_.lines < kLowScreen;
    for (std::string& legend : time_legend(*run_.ledger, style_, low ? 1 : 2)) {
      lines_.push_back(std::move(legend));
    }
  }

  void table() {
    if (run_.nodes.empty()) return count_events(0);
    put(line());
    put(std::move(
        row({"NODE", "RANKS", "STEP", "STEPS/S", "LATE", "CPU", "MEMORY", "SHARDS"}).add("  NOW")));
    const auto nodes = ordered(run_, view_.order);
    std::size_t rows = nodes.size();
    for (const NodeStatus* node : nodes) rows += is_open(*node) ? node->ranks.size() : 0;
    count_events(rows);
    const std::size_t below = 1 + (event_count_ > 0 ? event_count_ + 1 : 0);
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      const std::size_t rest = nodes.size() - i;
      if (view_.lines > 0 && left(below) <= (rest > 1 ? 1u : 0u)) {
        put(std::move(line().add(" and " + std::to_string(rest) + " more")));
        return;
      }
      node_row(*nodes[i], view_.lines > 0 && i == view_.chosen);
      for (std::size_t r = 0; is_open(*nodes[i]) && r < nodes[i]->ranks.size(); ++r) {
        if (view_.lines > 0 && left(below) <= 1) break;
        rank_row(nodes[i]->ranks[r]);
      }
    }
  }
  bool is_open(const NodeStatus& node) const {
    return view_.lines == 0 || node.id == view_.open_node;
  }
  // Nodes come before events; on a high screen with many nodes a few events stay.
  void count_events(std::size_t rows) {
    constexpr std::size_t kHighScreen = 12, kKept = 3;
    event_count_ = std::min(run_.events.size(), kEventsMax);
    if (view_.lines == 0) return;
    const std::size_t room = left(1);  // For rows, a blank line and events.
    const std::size_t kept = room >= kHighScreen ? kKept : 0;
    event_count_ = std::min(event_count_, std::max(kept, room > rows + 1 ? room - rows - 1 : 0));
  }

  struct Cells {
    std::string host, ranks, step, rate, late, cpu, memory, shards;
  };
  ScreenLine row(const Cells& cells) const {
    ScreenLine here = line();
    here.add(" " + padded(clipped(cells.host, kHostColumns, style_.utf8), kHostColumns));
    if (has_room(kRanksFrom)) here.add(" " + padded(cells.ranks, 11));
    if (has_room(kStepFrom)) here.add(right_aligned(cells.step, 11));
    if (has_room(kRateFrom)) here.add(right_aligned(cells.rate, 9));
    if (has_room(kLateFrom)) {
      here.add(right_aligned(cells.late, 10), cells.late.ends_with("ms") ? "1" : nullptr);
    }
    if (has_room(kCpuFrom) && has_usage()) here.add(right_aligned(cells.cpu, 8));
    if (has_room(kMemoryFrom) && has_usage()) here.add(right_aligned(cells.memory, 10));
    if (has_room(kShardsFrom) && has_shards()) here.add(right_aligned(cells.shards, 8));
    return here;
  }
  bool has_room(int columns) const { return style_.columns == 0 || style_.columns >= columns; }
  bool has_usage() const {
    return std::ranges::any_of(run_.nodes, [](const NodeStatus& node) {
      return std::ranges::any_of(node.ranks, [](const RankStatus& rank) { return rank.resident; });
    });
  }
  bool has_shards() const {
    return std::ranges::any_of(run_.nodes, [](const NodeStatus& node) {
      return std::ranges::any_of(node.ranks, [](const RankStatus& rank) { return rank.shards; });
    });
  }
  std::string shards(std::uint64_t count) const {
    return count == 0 ? none() : std::to_string(count);
  }
  std::string cpu(double processors) const {
    return processors > 0 ? std::to_string(std::lround(100 * processors)) + " %" : none();
  }
  std::string memory(std::uint64_t bytes) const { return bytes == 0 ? none() : memory_text(bytes); }
  // ", keeps 1.2 GB of 4 GB, copied" or ", copy 12 s behind, relayed": of the memory folder.
  std::string folder_text(const rendezvous::MemoryUse& use) const {
    constexpr auto kBehindMin = Milliseconds(1'000);
    const bool is_behind = use.behind && *use.behind >= kBehindMin;
    const std::string copied = is_behind    ? ", copy " + took_text(*use.behind) + " behind"
                               : use.behind ? ", copied"
                                            : "";
    return ", keeps " + memory_text(use.used) + " of " + memory_text(use.size) + copied +
           (use.relayed ? ", relayed" : "");
  }
  std::string none() const { return style_.pick("–", "-"); }
  std::string steps(std::uint64_t count) const {
    return count > 0 ? grouped(static_cast<std::int64_t>(count)) : none();
  }
  std::string rate(double per_second) const {
    return per_second > 0 ? rate_text(per_second) : none();
  }
  std::string late(const RankStatus* rank) const {
    return rank ? rate_text(rank->late_ms) + " ms" : none();
  }

  std::string ranks_of(const NodeStatus& node) const {
    if (node.base_rank < 0) return none();
    const std::string first = std::to_string(node.base_rank);
    const int last = node.base_rank + node.local_world_size - 1;
    return last == node.base_rank ? first : first + "-" + std::to_string(last);
  }

  void node_row(const NodeStatus& node, bool chosen) {
    std::uint64_t step = 0, bytes = 0, shard_count = 0;
    double fastest = 0, processors = 0;
    for (const RankStatus& rank : node.ranks) {
      step = std::max(step, rank.steps);
      fastest = std::max(fastest, rank.steps_per_s);
      processors += rank.cpu, bytes += rank.resident;
      shard_count += rank.rank >= 0 ? rank.shards : 0;
    }
    ScreenLine here =
        row({cell_text(node.host), ranks_of(node), steps(step), rate(fastest),
             late(latest_of(node)), cpu(processors), memory(bytes), shards(shard_count)});
    here.add("  " + cell_text(node.phase));
    if (node.memory) here.add(folder_text(*node.memory));
    constexpr auto kSilentMin = Milliseconds(2'000);
    if (node.silent >= kSilentMin) here.add(", silent for " + took_text(node.silent), "33");
    std::string text = here.take();
    if (chosen) text.replace(0, 1, style_.pick("▸", ">"));
    lines_.push_back(std::move(text));
  }

  void rank_row(const RankStatus& rank) {
    const std::string place = style_.pick("  ├ ", "    ");
    ScreenLine here = row({place + "local " + std::to_string(rank.local_rank),
                           rank.rank >= 0 ? std::to_string(rank.rank) : none(), steps(rank.steps),
                           rate(rank.steps_per_s), late(is_late(rank) ? &rank : nullptr),
                           cpu(rank.cpu), memory(rank.resident), shards(rank.shards)});
    put(std::move(here.add("  " + cell_text(rank.at))));
  }

  void events() {
    if (event_count_ == 0) return;
    put(line());
    for (std::size_t i = 0; i < event_count_; ++i) {
      const RunEventText& event = run_.events[run_.events.size() - 1 - i];
      ScreenLine here = line();
      std::string when = clock_text(event.at_s);
      when.insert(0, when.size() < 8 ? 8 - when.size() : 0, ' ');
      here.add(" " + when + "  ");
      here.add(event.is_trouble ? style_.pick("▲", "!") : style_.pick("·", "."),
               event.is_trouble ? "33" : nullptr);
      here.add("  " + cell_text(event.text));
      put(std::move(here));
    }
  }

  void keys() {
    if (view_.lines == 0) return;
    const std::size_t blanks = left(1);
    for (std::size_t i = 0; i < blanks; ++i) put(line());
    std::vector<LineField> fields;
    if (view_.paused) fields.push_back({" paused ", 10, "7"});
    fields.push_back({style_.pick("↑↓ choose", "j/k choose"), 7, "2"});
    fields.push_back({style_.pick("→ ranks", "Enter ranks"), 6, "2"});
    if (runs_ > 1) fields.push_back({"Tab run", 5, "2"});
    for (const auto& [text, need] :
         {std::pair{"o order", 4}, {"p pause", 3}, {"? help", 8}, {"q quit", 9}}) {
      fields.push_back({text, need, "2"});
    }
    ScreenLine here = line();
    here.add(" ").add_fields(std::move(fields));
    lines_.resize(std::min(lines_.size(), static_cast<std::size_t>(view_.lines) - 1));
    put(std::move(here));
  }

  const RunStatus& run_;
  const TopView& view_;
  const ScreenStyle& style_;
  const std::size_t runs_;
  std::vector<std::string> lines_;
  std::size_t event_count_ = 0;  // Number of events shown.
};

}  // namespace

std::string chosen_node(const DaemonStatus& status, const TopView& view) {
  if (view.run >= status.runs.size()) return "";
  const auto nodes = ordered(status.runs[view.run], view.order);
  return view.chosen < nodes.size() ? nodes[view.chosen]->id : "";
}

std::vector<std::string> top_screen(const DaemonStatus& status, const TopView& view) {
  if (view.run < status.runs.size()) {
    return Screen(status.runs[view.run], view, status.runs.size()).take();
  }
  return {" no runs"};
}

}  // namespace ddprun::launcher
