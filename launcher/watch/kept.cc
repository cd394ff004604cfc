#include "launcher/watch/kept.h"

#include <algorithm>
#include <chrono>
#include <csignal>
#include <ctime>

#include "agent/process/kept_images.h"
#include "common/system/held_process.h"
#include "common/text/figures.h"

namespace ddprun::launcher {
namespace {

constexpr Milliseconds kHolderEndLimit{2000};

std::string left_text(const KeptRow& row) {
  constexpr std::int64_t kMinute = 60;
  if (row.in_use) return "in use";
  const std::int64_t minutes = (std::max<std::int64_t>(row.left_s, 0) + kMinute - 1) / kMinute;
  return took_text(std::chrono::minutes(minutes));
}

}  // namespace

std::string kept_text(const std::vector<KeptRow>& rows, const ScreenStyle& style) {
  if (rows.empty()) return "nothing is kept for later runs (ddprun --preload-keep)\n";
  const std::vector<TableColumn> columns = {{"PID"},
                                            {"MODULES", 1},
                                            {"MEMORY", 3},
                                            {"LEFT", 2},
                                            {.name = "PROGRAM", .may_be_clipped = true}};
  std::vector<TableRow> table;
  for (const KeptRow& row : rows) {
    table.push_back({std::to_string(row.holder), std::to_string(row.modules),
                     memory_text(row.bytes), left_text(row), cell_text(row.program)});
  }
  return table_text(columns, table, style);
}

Result<std::string> kept_here(const ScreenStyle& style) {
  std::vector<KeptRow> rows;
  for (const agent::KeptImage& image : agent::kept_images()) {
    rows.push_back({.holder = image.holder,
                    .program = image.facts.program,
                    .modules = image.facts.modules,
                    .bytes = image.bytes,
                    .left_s = image.until - std::time(nullptr),
                    .in_use = agent::is_in_use(image)});
  }
  return kept_text(rows, style);
}

Result<std::string> end_kept(const std::string& which) {
  int ended = 0;
  std::uint64_t bytes = 0;
  for (const agent::KeptImage& image : agent::kept_images()) {
    if (which != "all" && which != std::to_string(image.holder)) continue;
    if (!send_signal(image.process, SIGKILL)) continue;  // It may be stopped.
    (void)ends_within(image.process, kHolderEndLimit);
    ++ended;
    bytes += image.bytes;
  }
  if (ended > 0) return "ended " + std::to_string(ended) + ", with " + memory_text(bytes) + "\n";
  if (which == "all") return std::string("nothing is kept for later runs\n");
  return Failure{Errc::kNotFound, "process " + which +
                                      " keeps nothing of yours for later runs; `ddprunctl preload` "
                                      "lists what does"};
}

}  // namespace ddprun::launcher
