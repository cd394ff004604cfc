#include "agent/verdict/status_text.h"

#include <algorithm>
#include <vector>

#include "common/text/figures_text.h"

namespace ddprun::agent {
namespace {

std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & '\xc0') != '\x80'; }));
}

std::string plain(std::string text) {
  for (char& letter : text) {
    if (static_cast<unsigned char>(letter) < ' ' || letter == '\x7f') letter = '?';
  }
  return text;
}

struct Piece {
  std::string text;
  int need;  // The least needed goes first.
};

std::vector<Piece> pieces_of(const StatusFacts& facts) {
  std::vector<Piece> pieces;
  if (facts.run_id != "none") pieces.push_back({plain(facts.run_id), 8});
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
  std::vector<Piece> pieces = pieces_of(facts);
  const auto room = static_cast<std::size_t>(std::max(style.columns - 1, 1));
  const auto width = [&] {
    std::size_t sum = 1;
    for (const Piece& piece : pieces) sum += 2 + width_of(piece.text);
    return sum - 1;
  };
  while (width() > room && pieces.size() > 1) {
    pieces.erase(std::ranges::min_element(pieces, {}, &Piece::need));
  }
  if (width() > room) return "";
  const bool goes_on = facts.world_size > 0;
  const std::string mark = style.utf8 ? (goes_on ? "●" : "○") : (goes_on ? "*" : ".");
  std::string text = style.colour ? "\x1b[34m" + mark + "\x1b[0m" : mark;
  for (std::size_t i = 0; i < pieces.size(); ++i) text += (i == 0 ? " " : "  ") + pieces[i].text;
  return text;
}

}  // namespace ddprun::agent
