#include "agent/verdict/verdict_picture.h"

#include <algorithm>
#include <csignal>
#include <cstring>
#include <vector>

#include "common/text/display.h"
#include "common/text/figures.h"
#include "rendezvous/protocol/wire.h"

namespace ddprun::agent {
namespace {

std::vector<LineField> pieces_of(const StatusFacts& facts) {
  std::vector<LineField> pieces;
  if (facts.run_id != "none") pieces.push_back({plain_line(facts.run_id), 8});
  std::string ranks =
      std::to_string(facts.world_size) + (facts.world_size == 1 ? " rank" : " ranks");
  if (facts.nodes > 1) ranks += " on " + std::to_string(facts.nodes) + " nodes";
  pieces.push_back({ranks, 6});
  pieces.push_back({clock_text(static_cast<double>(facts.elapsed.count())), 9});
  if (facts.step) {
    pieces.push_back({"step " + grouped(static_cast<std::int64_t>(*facts.step)), 10});
    if (facts.steps_per_s > 0) pieces.push_back({rate_text(facts.steps_per_s) + " steps/s", 5});
  }
  if (facts.late_rank >= 0) {
    pieces.push_back(
        {"late: rank " + std::to_string(facts.late_rank) + ", " + rate_text(facts.late_ms) + " ms",
         7});
  }
  if (facts.restart_count > 0) {
    pieces.push_back({"restart " + std::to_string(facts.restart_count) + " of " +
                          std::to_string(facts.max_restarts),
                      4});
  }
  return pieces;
}

}  // namespace

std::string status_text(const StatusFacts& facts, const StatusStyle& style) {
  std::vector<LineField> pieces = pieces_of(facts);
  const auto room = static_cast<std::size_t>(std::max(style.columns - 1, 1));
  constexpr std::size_t kMark = 2, kGap = 2;  // The mark and a blank come first.
  keep_fields(pieces, room > kMark ? room - kMark : 1, kGap);
  if (pieces.size() == 1 && kMark + text_columns(pieces[0].text) > room) return "";
  const bool goes_on = facts.world_size > 0;
  const std::string mark = style.utf8 ? (goes_on ? "●" : "○") : (goes_on ? "*" : ".");
  std::string text = style.colour ? "\x1b[34m" + mark + "\x1b[0m" : mark;
  for (std::size_t i = 0; i < pieces.size(); ++i) text += (i == 0 ? " " : "  ") + pieces[i].text;
  return text;
}

namespace {

using rendezvous::Verdict;

constexpr std::size_t kWordsMax = 12;  // Lines of last words; the JSON has all.
constexpr std::size_t kLabelWidth = 10;
constexpr int kColumnsMin = 40;

class Picture {
 public:
  explicit Picture(const PictureStyle& style)
      : style_(style), columns_(static_cast<std::size_t>(std::max(style.columns, kColumnsMin))) {}

  void head(const char* mark, const char* colour, const std::string& text) {
    for (const std::string& line : wrapped(text, columns_ - 3)) {
      const bool first = text_.empty();
      text_ +=
          (first ? " " + paint(mark, colour) + " " : std::string("   ")) + paint(line, "1") + "\n";
    }
  }
  // As it was written, cut off, and without colours: these cost no columns, but cannot be cut.
  void quote(std::string_view line) { text_ += " │ " + clipped(line, columns_ - 3) + "\n"; }
  void fact(const char* label, const std::string& text) {
    if (text.empty()) return;
    bool first = true;
    for (const std::string& line : wrapped(text, columns_ - 3 - kLabelWidth)) {
      std::string name = first ? label : "";
      name.resize(kLabelWidth, ' ');
      text_ += (first ? " ├ " : " │ ") + paint(name, "2") + line + "\n";
      first = false;
    }
  }
  std::string end(int exit_code) {
    return text_ + " └ ends with " + std::to_string(exit_code) + "\n";
  }
  std::string take() { return text_; }

 private:
  std::string paint(const std::string& text, const char* sgr) const {
    return style_.colour ? "\x1b[" + std::string(sgr) + "m" + text + "\x1b[0m" : text;
  }

  static std::vector<std::string> wrapped(std::string_view text, std::size_t columns) {
    std::vector<std::string> lines;
    while (!text.empty()) {
      std::string_view line = first_columns(text, columns);
      const std::size_t newline = line.find('\n');
      if (newline != std::string_view::npos) {
        line = line.substr(0, newline);
      } else if (line.size() < text.size() && line.rfind(' ') != std::string_view::npos) {
        line = line.substr(0, line.rfind(' '));
      }
      lines.emplace_back(line);
      text.remove_prefix(std::min(text.size(), line.size()));
      while (!text.empty() && (text.front() == ' ' || text.front() == '\n')) text.remove_prefix(1);
    }
    return lines;
  }

  const PictureStyle style_;
  const std::size_t columns_;
  std::string text_;
};

std::string headline(const WorkerDeath& first, const Verdict& verdict) {
  std::string what = rendezvous::what_happened(first);
  if (what.starts_with("was ")) what.erase(0, 4);
  std::string text =
      "rank " + std::to_string(first.rank) + " on " + first.host + " failed first: " + what;
  if (verdict.ledger) text += ", after " + took_text(verdict.ledger->wall);
  if (first.steps > 0) text += ", at step " + grouped(first.steps);
  return text;
}

std::string victims_of(const Verdict& verdict) {
  std::vector<int> ranks;
  for (const WorkerDeath& death : verdict.victims) ranks.push_back(death.rank);
  std::sort(ranks.begin(), ranks.end());
  ranks.erase(std::unique(ranks.begin(), ranks.end()), ranks.end());
  if (ranks.empty()) return "";
  return (ranks.size() == 1 ? "rank " : "ranks ") + ranges_text(ranks);
}

std::string time_of(const Verdict& verdict) {
  if (!verdict.ledger || verdict.ledger->parts.kept().count() == 0) return "";
  const LedgerTotals& ledger = *verdict.ledger;
  std::string text = "goodput " + percent_text(ledger.goodput());
  for (const TimePart part : {TimePart::kLost, TimePart::kRestart, TimePart::kWaiting}) {
    if (ledger.parts[part].count() == 0) continue;
    text += std::string(", ") + label_of(part) + " " + percent_text(ledger.share(part));
  }
  return text;
}

// Each tab as a blank, so that a line's width is known.
std::string without_tabs(std::string text) {
  std::replace(text.begin(), text.end(), '\t', ' ');
  return text;
}

void quote_words(Picture& picture, const std::string& words) {
  std::size_t lines = 0;
  for (std::size_t at = 0; at < words.size(); ++lines) {
    const std::size_t end = std::min(words.find('\n', at), words.size());
    if (lines < kWordsMax) picture.quote(std::string_view(words).substr(at, end - at));
    at = end + 1;
  }
  if (lines > kWordsMax) picture.quote("... " + std::to_string(lines - kWordsMax) + " more lines");
}

}  // namespace

std::string stopped_picture(const SignalEnd& stopped, const PictureStyle& style) {
  const char* name = ::sigabbrev_np(stopped.signal);
  std::string text = stopped.signal == SIGINT ? "stopped by Ctrl-C"
                                              : "stopped by SIG" + std::string(name ? name : "?");
  text += " after " + took_text(std::chrono::duration_cast<TimeParts::Time>(stopped.after));
  if (stopped.step) text += ", at step " + grouped(static_cast<std::int64_t>(*stopped.step));
  if (!stopped.why.empty()) text += ": " + stopped.why;
  Picture picture(style);
  picture.head("!", "33", without_escapes(text));
  return picture.take();
}

std::string verdict_picture(const Verdict& verdict, const std::string& run_id,
                            const PictureStyle& style) {
  Picture picture(style);
  if (verdict.kind == Verdict::Kind::kSuccess) {
    std::string text = (run_id == "none" ? "" : run_id + " ") + "finished";
    if (verdict.ledger) text += " after " + took_text(verdict.ledger->wall);
    const std::string time = time_of(verdict);
    picture.head("✓", "32", without_escapes(text + (time.empty() ? "" : ": " + time)));
    return picture.take();
  }
  if (!verdict.first_cause) {
    const bool stopped = verdict.kind == Verdict::Kind::kInterrupted;
    picture.head(stopped ? "!" : "✗", stopped ? "33" : "31", without_escapes(verdict.text));
    picture.fact("time", time_of(verdict));
    return picture.end(verdict.exit_code);
  }
  const WorkerDeath& first = *verdict.first_cause;
  picture.head("✗", "31", without_escapes(headline(first, verdict)));
  if (style.output_shown) {
    picture.quote("its last words are above");
  } else {
    quote_words(picture, without_tabs(without_escapes(first.detail, Colours::kRemoved)));
  }
  picture.fact("evidence", without_escapes(first.evidence));
  picture.fact("again", without_escapes(verdict.again));
  picture.fact("restarts", verdict.restarts.empty() ? "" : verdict.restarts + ", none is left");
  picture.fact("victims", victims_of(verdict));
  picture.fact("time", time_of(verdict));
  picture.fact("try", without_escapes(verdict.advice));
  return picture.end(verdict.exit_code);
}

}  // namespace ddprun::agent
