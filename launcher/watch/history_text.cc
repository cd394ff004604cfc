#include "launcher/watch/history_text.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/text/display.h"
#include "common/text/figures.h"
#include "common/text/words.h"

namespace ddprun::launcher {
namespace {

using nlohmann::json;

constexpr int kPipeColumns = 120;
constexpr std::int64_t kDay = 86'400;
constexpr int kSignalled = 128;  // Plus the signal's number: an exit code.

std::string words(const json& object, const char* name) {
  const auto it = object.find(name);
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

const json& part_of(const json& object, const char* name) {
  static const json kNothing = json::object();
  const auto it = object.find(name);
  return it != object.end() && it->is_object() ? *it : kNothing;
}

std::optional<LedgerTotals> ledger_of(const json& verdict) {
  const json& parts = part_of(part_of(verdict, "ledger"), "parts_s");
  LedgerTotals ledger;
  for (std::size_t i = 0; i < kTimeParts; ++i) {
    const auto it = parts.find(name_of(static_cast<TimePart>(i)));
    if (it == parts.end() || !it->is_number()) continue;
    const double seconds = std::clamp(it->get<double>(), 0.0, 1e9);
    ledger.parts.times[i] = TimeParts::Time(static_cast<std::int64_t>(seconds * 1e6));
  }
  if (ledger.in_run().count() == 0) return std::nullopt;
  return ledger;
}

std::string last_line(const std::string& text) {
  const std::size_t end = text.find_last_not_of("\n ");
  if (end == std::string::npos) return "";
  const std::size_t newline = text.rfind('\n', end);
  const std::size_t begin = newline == std::string::npos ? 0 : newline + 1;
  return text.substr(begin, end - begin + 1);
}

std::string rank_on_host(const json& first) {
  const auto rank = first.find("rank");
  if (rank == first.end() || !rank->is_number_integer()) return "";
  return "rank " + std::to_string(rank->get<int>()) + " on " + words(first, "host");
}

std::string ending_of(const json& first) {
  const std::string signal = words(first, "signal_name");
  if (!signal.empty()) return "killed by " + signal;
  const auto code = first.find("exit_code");
  const bool known = code != first.end() && code->is_number_integer();
  return known ? "exit code " + std::to_string(code->get<int>()) : "";
}

std::string fate_of(const PastRun& run, const json& verdict) {
  const std::string kind = words(verdict, "kind");
  const std::string so_far = kind == "interrupted" ? words(verdict, "text") : "";
  if (run.state == RunState::kRunning) return so_far.empty() ? "runs" : "is stopping: " + so_far;
  if (run.state == RunState::kVanished && !so_far.empty()) {
    return so_far + ", and killed before its workers had ended";
  }
  if (run.state == RunState::kVanished) {
    return "no end is known: ddprun was killed, or the machine went down";
  }
  if (kind == "success") return "finished";
  const json& first = part_of(verdict, "first_cause");
  const std::string rank_text = rank_on_host(first), last = last_line(words(first, "last_words"));
  if (!rank_text.empty() && !last.empty()) return rank_text + ": " + last;
  if (const std::string ending = ending_of(first); !rank_text.empty() && !ending.empty()) {
    return rank_text + ": " + ending;
  }
  const std::string text = words(verdict, "text");
  if (!text.empty()) return text.substr(0, text.find('\n'));
  const char* signal = ::sigabbrev_np(run.record.exit_code - kSignalled);
  if (kind == "interrupted" && signal) return std::string("stopped by SIG") + signal;
  return "exit code " + std::to_string(run.record.exit_code);
}

struct Mark {
  const char* glyph;
  const char* ascii;
  const char* colour;
};

Mark mark_of(const PastRun& run, const json& verdict) {
  if (run.state == RunState::kRunning) return {"●", "*", "34"};
  if (run.state == RunState::kEnded && run.record.exit_code == 0) return {"✓", "+", "32"};
  const bool stopped = words(verdict, "kind") == "interrupted";
  return stopped ? Mark{"!", "!", "33"} : Mark{"✗", "x", "31"};
}

json verdict_of(const PastRun& run) {
  json verdict = json::parse(run.record.verdict, nullptr, /*allow_exceptions=*/false);
  return verdict.is_object() ? verdict : json::object();
}

std::string took(const PastRun& run, const LocalTime& time) {
  if (run.state == RunState::kVanished) return "-";
  const double since =
      static_cast<double>(std::max<std::int64_t>(time.now - run.record.started, 0));
  const double seconds = std::clamp(run.record.took_s.value_or(since), 0.0, 1e9);
  return took_text(std::chrono::microseconds(static_cast<std::int64_t>(seconds * 1e6)));
}

TableRow row_of(const PastRun& run, std::size_t number, const LocalTime& time,
                const ScreenStyle& style) {
  const RunRecord& record = run.record;
  const json verdict = verdict_of(run);
  const auto ledger = ledger_of(verdict);
  const Mark mark = mark_of(run, verdict);
  const bool ended = run.state == RunState::kEnded;
  const bool kept = ended && ledger && ledger->parts.kept().count() > 0;
  return {
      style.pick(mark.glyph, mark.ascii),
      std::to_string(number),
      cell_text(record.run_id),
      when_text(record.started, time),
      took(run, time),
      ended && record.world_size > 0 ? std::to_string(record.world_size) : "-",
      ended ? std::to_string(record.restarts) + " of " + std::to_string(record.max_restarts) : "-",
      kept ? percent_text(ledger->goodput()) : "-",
      cell_text(fate_of(run, verdict))};
}

// Indents each line; workers' output keeps its colours if the style has any.
std::string indented(const std::string& text, const ScreenStyle& style) {
  std::string result;
  const std::string safe = without_escapes(text);
  for (std::size_t at = 0; at < safe.size();) {
    const std::size_t end = std::min(safe.find('\n', at), safe.size());
    const std::string line = safe.substr(at, end - at);
    result += "  " + (style.colours ? line : cell_text(line)) + "\n";
    at = end + 1;
  }
  return result;
}

// The events of the run, if the record has them.
std::string events_text(const RunRecord& record) {
  std::string text;
  for (const RunEventText& event : record.events) {
    const double seconds = std::clamp(event.at_s, 0.0, 1e9);
    const auto at = std::chrono::microseconds(static_cast<std::int64_t>(seconds * 1e6));
    text += "  " + took_text(at) + "  " + cell_text(event.text) + "\n";
  }
  return text.empty() ? "" : "\nwhat happened, since its start\n" + text;
}

}  // namespace

std::string utc_text(std::int64_t then) {
  const auto time = std::chrono::sys_seconds(std::chrono::seconds(std::max<std::int64_t>(then, 0)));
  const auto day = std::chrono::floor<std::chrono::days>(time);
  const std::chrono::year_month_day date(day);
  const std::chrono::hh_mm_ss clock(time - day);
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%04d-%02u-%02uT%02d:%02d:%02dZ",
                static_cast<int>(date.year()), static_cast<unsigned>(date.month()),
                static_cast<unsigned>(date.day()), static_cast<int>(clock.hours().count()),
                static_cast<int>(clock.minutes().count()),
                static_cast<int>(clock.seconds().count()));
  return text.data();
}

std::string when_text(std::int64_t then, const LocalTime& time) {
  const std::int64_t local = std::max<std::int64_t>(then + time.ahead, 0);
  const std::int64_t days = local / kDay, today = (time.now + time.ahead) / kDay;
  std::array<char, 64> text{};
  const auto minutes = static_cast<int>(local % kDay / 60);
  if (days == today || days + 1 == today) {
    std::snprintf(text.data(), text.size(), "%s %02d:%02d", days == today ? "today" : "yesterday",
                  minutes / 60, minutes % 60);
    return text.data();
  }
  const std::chrono::year_month_day date{std::chrono::sys_days{std::chrono::days(days)}};
  std::snprintf(text.data(), text.size(), "%04d-%02u-%02u %02d:%02d", static_cast<int>(date.year()),
                static_cast<unsigned>(date.month()), static_cast<unsigned>(date.day()),
                minutes / 60, minutes % 60);
  return text.data();
}

std::optional<std::size_t> find_run(const std::vector<PastRun>& runs, std::string_view word) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].record.run_id == word || runs[i].name == word) return i;
  }
  const auto number = as_number<std::size_t>(word);
  if (!number || *number == 0 || *number > runs.size()) return std::nullopt;
  return *number - 1;
}

std::string history_text(const std::vector<PastRun>& runs, const LocalTime& time,
                         const ScreenStyle& style, KeptBy keeper) {
  const bool own = keeper == KeptBy::kMachine;
  if (runs.empty()) {
    return own ? "there are no records of your runs on this machine\n"
               : "this daemon has no record of an ended run\n";
  }
  const std::vector<TableColumn> columns = {
      {"", 0},         {"NO", 8},      {.name = "RUN", .may_be_clipped = true},
      {"STARTED", 6},  {"TOOK", 5},    {"RANKS", 3},
      {"RESTARTS", 2}, {"GOODPUT", 4}, {"ENDED", 0}};
  std::vector<TableRow> rows;
  std::vector<const char*> colours;
  for (std::size_t i = 0; i < runs.size(); ++i) {
    rows.push_back(row_of(runs[i], i + 1, time, style));
    colours.push_back(mark_of(runs[i], verdict_of(runs[i])).colour);
  }
  std::string text = table_text(columns, rows, style, colours);
  const char* hints[2][2] = {
      {"more, with the same -e: ddprunctl history RUN, report RUN --html FILE",
       "RUN is an id, or for history a number of this list"},
      {"more: ddprunctl history RUN, logs RUN, report RUN --html FILE",
       "RUN is an id, or a number of this list"}};
  text += "\n";
  const auto width = static_cast<std::size_t>(style.columns > 0 ? style.columns : kPipeColumns);
  for (const char* hint : hints[own ? 1 : 0]) {
    for (const std::string& line : wrapped_lines(hint, width)) text += line + "\n";
  }
  return text;
}

std::string past_run_text(const PastRun& run, const LocalTime& time, const ScreenStyle& style,
                          KeptBy keeper) {
  const RunRecord& record = run.record;
  const json verdict = verdict_of(run);
  std::string text =
      "run       " + cell_text(record.run_id) + " on " + cell_text(record.host) + "\n";
  text += "command   " + cell_text(record.command) + "\n";
  text += "started   " + when_text(record.started, time) + "\n";
  text += "took      " + took(run, time) + "\n";
  if (record.world_size > 0) {
    text += "ranks     " + std::to_string(record.world_size) +
            (record.nodes > 0 ? " on " + number_of(record.nodes, "node") : "") + "\n";
  }
  text += "restarts  " + std::to_string(record.restarts) + " of " +
          std::to_string(record.max_restarts) + "\n";
  if (const auto ledger = ledger_of(verdict); ledger && ledger->parts.kept().count() > 0) {
    constexpr std::size_t kIndent = 9, kLegendLines = 3;
    ScreenStyle narrower = style;
    if (style.columns > 0)
      narrower.columns = std::max(style.columns - static_cast<int>(kIndent), 1);
    text += "goodput   " + percent_text(ledger->goodput()) + "\n";
    for (const std::string& line : time_legend(*ledger, narrower, kLegendLines)) {
      text += std::string(kIndent, ' ') + line + "\n";
    }
  }
  text += "ended     ";
  if (run.state != RunState::kEnded) return text + cell_text(fate_of(run, verdict)) + "\n";
  text +=
      cell_text(words(verdict, "kind")) + ", exit code " + std::to_string(record.exit_code) + "\n";
  const bool well = words(verdict, "kind") == "success";
  if (!well) text += "\n" + indented(words(verdict, "text"), style);
  text += events_text(record);
  const std::string id = shell_quote(plain_line(record.run_id));
  const bool reports = !record.account.empty() || keeper == KeptBy::kDaemon;
  text += reports ? "\nwhere its time went: ddprunctl report " + id + " --html FILE\n" : "\n";
  if (keeper == KeptBy::kDaemon) return text;
  return text + "what the workers wrote last: ddprunctl logs " + id + "\n";
}

Result<std::vector<PastRun>> decode_history(std::string_view text) {
  const auto is_kept = [](int depth, json::parse_event_t, json&) { return depth <= 64; };
  const json object = json::parse(text, is_kept, /*allow_exceptions=*/false);
  if (!object.is_object() || !object.contains("runs") || !object["runs"].is_array()) {
    return Failure{Errc::kBadMessage, "decoding a history"};
  }
  std::vector<PastRun> runs;
  for (const json& one : object["runs"]) {
    auto record = decode_record(one.dump());
    if (!record) return record.error();
    runs.push_back({.name = "", .record = std::move(*record)});
  }
  return runs;
}

std::string history_json(const std::vector<PastRun>& runs) {
  json list = json::array();
  for (const PastRun& run : runs) {
    json object = json::parse(encode(run.record), nullptr, /*allow_exceptions=*/false);
    const bool ended = run.state == RunState::kEnded;
    object["state"] = ended ? "ended" : run.state == RunState::kRunning ? "running" : "vanished";
    list.push_back(std::move(object));
  }
  return json({{"runs", std::move(list)}}).dump(2) + "\n";
}

std::string tails_text(const RunRecord& record, int rank, bool is_stderr) {
  std::string text;
  for (const RunTail& tail : record.tails) {
    const bool wanted = rank < 0 || tail.rank == rank;
    if (!wanted || (tail.stream == "stderr") != is_stderr) continue;
    for (std::size_t at = 0; at < tail.text.size();) {
      const std::size_t end = std::min(tail.text.find('\n', at), tail.text.size());
      text += "[" + std::to_string(tail.rank) + "]: " + tail.text.substr(at, end - at) + "\n";
      at = end + 1;
    }
  }
  return text;
}

}  // namespace ddprun::launcher
