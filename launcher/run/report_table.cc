#include "launcher/run/report_table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "common/text/screen.h"
#include "launcher/run/report_columns.h"

namespace ddprun::launcher {
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

// Headings for narrow terminals, and in which order columns are left out there, in the order of
// kParts: what the wait for gradients cost stays longest.
constexpr std::array<const char*, RankTime::kParts.size()> kBrief = {
    "start", "out", "fwd", "bwd", "wait", "xfer", "unkn", "data", "optim", "rest"};
constexpr std::array<int, RankTime::kParts.size()> kYields = {3, 7, 8, 9, 11, 10, 2, 5, 6, 1};
constexpr int kStepsYield = 4;

const std::set<std::string> kPhases = {"outside", "data", "forward", "backward", "optimizer"};

// Parts that not every program tells from the others, and older SDKs do not mention.
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

// All ranks have heard the same windows; one that ended early has heard fewer.
std::vector<std::string> late_lines(const std::vector<RankTime>& ranks) {
  const auto knows = std::max_element(
      ranks.begin(), ranks.end(), [](auto& a, auto& b) { return a.window_steps < b.window_steps; });
  std::vector<std::string> lines;
  for (const RankTime::Late& late : knows->late) {
    char line[160];
    std::snprintf(line, sizeof line, "rank %d was last in %lld of %lld steps, %.1f ms each, in ",
                  late.rank, late.steps, knows->window_steps,
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
  std::vector<std::pair<double, std::size_t>> lost;  // What rounding down took, and from whom.
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
