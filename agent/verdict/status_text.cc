#include "agent/verdict/status_text.h"

#include <algorithm>
#include <vector>

#include "common/text/figures.h"
#include "common/text/screen.h"

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

}  // namespace ddprun::agent
