#include "launcher/run/report_table.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

namespace ddprun::launcher {
namespace {

constexpr std::size_t kSummaryBytesMax = 64 * 1024;
constexpr double kSecondsMax = 1e9;

constexpr const char* kLegend =
    "startup: until the first step; outside: optimizer, data, anything between steps; waiting: for "
    "gradients,\nuntil the last rank had come; transfer: for gradients, the rest of it; rest: "
    "after the last step.\n";
constexpr const char* kParted =
    "data, optimizer: what of outside is known to be the data loader's and the optimizer's.\n";
constexpr const char* kUnknown =
    "unknown: for gradients, in steps of no complete window: waiting or transfer.\n";

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
std::string late_lines(const std::vector<RankTime>& ranks) {
  const auto knows = std::max_element(
      ranks.begin(), ranks.end(), [](auto& a, auto& b) { return a.window_steps < b.window_steps; });
  std::string text;
  for (const RankTime::Late& late : knows->late) {
    char line[160];
    std::snprintf(line, sizeof line, "rank %d was last in %lld of %lld steps, %.1f ms each, in ",
                  late.rank, late.steps, knows->window_steps,
                  1e3 * late.seconds / static_cast<double>(late.steps));
    text += line + late.phase + "\n";
  }
  return text;
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

std::string head_line(const std::vector<RankTime>& ranks) {
  std::string text = "rank      wall s    steps";
  char cell[96];
  for (std::size_t p = 0; p < RankTime::kParts.size(); ++p) {
    if (!is_column(ranks, p)) continue;
    std::snprintf(cell, sizeof cell, " %9s", RankTime::kParts[p]);
    text += cell;
  }
  return text + "   per cent of the wall time\n";
}

std::string row(const std::vector<RankTime>& ranks, const RankTime& rank) {
  char cell[96];
  std::snprintf(cell, sizeof cell, "%-6d %9.2f %8lld", rank.rank, rank.wall(), rank.steps);
  std::string text = cell;
  const auto shares = per_mille({rank.seconds.begin(), rank.seconds.end()});
  for (std::size_t p = 0; p < shares.size(); ++p) {
    if (!is_column(ranks, p)) continue;
    std::snprintf(cell, sizeof cell, " %9.1f", shares[p] / 10.0);
    text += cell;
  }
  return text + "   " + rank.host + "\n";
}

}  // namespace

std::string report_table(std::vector<RankTime> ranks) {
  if (ranks.empty()) {
    return "no rank of this node left a summary: only programs that train with PyTorch or with "
           "ddprun's\nDistributedDataParallel and end it do\n";
  }
  std::sort(ranks.begin(), ranks.end(), [](auto& a, auto& b) { return a.rank < b.rank; });
  std::string text = head_line(ranks);
  for (const RankTime& rank : ranks) text += row(ranks, rank);
  const bool parted = has(ranks, RankTime::kData) || has(ranks, RankTime::kOptimizer);
  return text + kLegend + (parted ? kParted : "") +
         (has(ranks, RankTime::kUnknown) ? kUnknown : "") + late_lines(ranks);
}

}  // namespace ddprun::launcher
