#include "common/ledger/process_starts.h"

#include <algorithm>
#include <chrono>

#include "common/ledger/time_parts.h"
#include "common/text/figures.h"

namespace ddprun {
namespace {

constexpr StartPart kParts[] = {StartPart::kSpawn, StartPart::kImports, StartPart::kRendezvous,
                                StartPart::kFirstStep};
constexpr std::size_t kNumbers = 5;  // Of a ProcessStart.
constexpr std::size_t kKindNumbers = 1 + 2 * kStartParts;

// Whatever agents have claimed, sums are numbers.
std::int64_t sum_of(std::int64_t a, std::int64_t b) { return std::min(a + b, kTimeMax.count()); }

std::optional<std::int64_t> between(std::int64_t from, std::int64_t until) {
  if (from <= 0 || until <= 0) return std::nullopt;
  return std::max<std::int64_t>(until - from, 0);
}

void append(std::vector<std::int64_t>& numbers, const StartTotals::Kind& kind) {
  numbers.push_back(kind.processes);
  for (const auto& part : kind.parts) numbers.push_back(part.count), numbers.push_back(part.sum_us);
}

StartTotals::Kind kind_of(const std::int64_t* numbers) {
  StartTotals::Kind kind{.processes = *numbers++};
  for (auto& part : kind.parts) part.count = *numbers++, part.sum_us = *numbers++;
  return kind;
}

void add_line(std::vector<std::string>& lines, const StartTotals::Kind& kind, const char* how) {
  if (kind.processes == 0) return;
  std::string parts;
  for (const StartPart part : kParts) {
    const auto mean = kind.mean(part);
    if (!mean) continue;
    parts += (parts.empty() ? "" : ", ") + std::string(label_of(part)) + " " +
             took_text(std::chrono::duration_cast<std::chrono::microseconds>(
                 std::chrono::duration<double>(*mean)));
  }
  lines.push_back("starts of " + std::to_string(kind.processes) +
                  (kind.processes == 1 ? " process, " : " processes, ") + how +
                  ", on average: " + parts);
}

}  // namespace

const char* name_of(StartPart part) {
  switch (part) {
    case StartPart::kSpawn: return "spawn";
    case StartPart::kImports: return "imports";
    case StartPart::kRendezvous: return "rendezvous";
    case StartPart::kFirstStep: return "first_step";
  }
  return "";
}

const char* label_of(StartPart part) {
  return part == StartPart::kFirstStep ? "until the first step" : name_of(part);
}

std::optional<std::int64_t> ProcessStart::operator[](StartPart part) const {
  switch (part) {
    case StartPart::kSpawn: return spawn_us;
    case StartPart::kImports: return joining_us > 0 ? std::optional(joining_us) : std::nullopt;
    case StartPart::kRendezvous: return between(joining_us, met_us);
    case StartPart::kFirstStep: return between(met_us, first_step_us);
  }
  return std::nullopt;
}

std::string to_text(const std::vector<ProcessStart>& starts) {
  std::string text;
  for (const ProcessStart& start : starts) {
    const std::int64_t numbers[] = {start.preloaded ? 1 : 0, start.spawn_us, start.joining_us,
                                    start.met_us, start.first_step_us};
    text += (text.empty() ? "" : ";") + number_list(numbers);
  }
  return text;
}

std::optional<std::vector<ProcessStart>> parse_process_starts(std::string_view text) {
  std::vector<ProcessStart> starts;
  while (!text.empty()) {
    const std::size_t end = text.find(';');
    const auto numbers = parse_number_list(text.substr(0, end), kNumbers);
    if (!numbers || starts.size() == kStartsMax) return std::nullopt;
    const auto& n = *numbers;
    starts.push_back({n[0] != 0, n[1], n[2], n[3], n[4]});
    text = end == std::string_view::npos ? "" : text.substr(end + 1);
  }
  return starts;
}

std::optional<double> StartTotals::Kind::mean(StartPart part) const {
  const Part& here = parts[static_cast<std::size_t>(part)];
  if (here.count == 0) return std::nullopt;
  return static_cast<double>(here.sum_us) / static_cast<double>(here.count) / 1e6;
}

void StartTotals::add(const ProcessStart& start) {
  Kind& kind = start.preloaded ? preloaded : cold;
  kind.processes = sum_of(kind.processes, 1);
  for (const StartPart part : kParts) {
    const auto took = start[part];
    if (!took) continue;
    Part& here = kind.parts[static_cast<std::size_t>(part)];
    here = {sum_of(here.count, 1), sum_of(here.sum_us, *took)};
  }
}

std::string to_text(const StartTotals& totals) {
  std::vector<std::int64_t> numbers;
  append(numbers, totals.cold), append(numbers, totals.preloaded);
  return number_list(numbers);
}

std::optional<StartTotals> parse_start_totals(std::string_view text) {
  const auto numbers = parse_number_list(text, 2 * kKindNumbers);
  if (!numbers) return std::nullopt;
  return StartTotals{.cold = kind_of(numbers->data()),
                     .preloaded = kind_of(numbers->data() + kKindNumbers)};
}

std::vector<std::string> start_lines(const StartTotals& totals) {
  std::vector<std::string> lines;
  add_line(lines, totals.cold, "cold");
  add_line(lines, totals.preloaded, "preloaded");
  return lines;
}

}  // namespace ddprun
