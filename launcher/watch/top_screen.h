#pragma once
// The screen of `ddprunctl top`: one run, its nodes and ranks, who is late, where the time went,
// what happened. Pure.

#include <string>
#include <vector>

#include "launcher/watch/screen_text.h"
#include "rendezvous/run/status.h"

namespace ddprun::launcher {

enum class TopOrder {
  kRank,
  kLate,  // Those that the others wait for first.
};

struct TopView {
  ScreenStyle style{};
  int lines = 0;  // Of the terminal; 0: any, and all ranks, without keys.
  TopOrder order = TopOrder::kRank;
  std::size_t run = 0;       // Which of the runs.
  std::size_t chosen = 0;    // Of the nodes, in the order of the screen.
  std::string open_node{};   // The id of the node whose ranks are shown.
  bool paused = false;
  bool help = false;  // Instead of nodes and events: what keys and columns mean.
};

// How many nodes there are to choose from, and the id of the chosen one; empty: there is none.
std::string chosen_node(const rendezvous::DaemonStatus& status, const TopView& view);

// Lines without their ends, at most `lines` and none wider than `columns`.
std::vector<std::string> top_screen(const rendezvous::DaemonStatus& status, const TopView& view);

}  // namespace ddprun::launcher
