#include "common/ledger/time_parts.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <numeric>

#include "common/assert.h"
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

void ShardTotals::add(int rank, std::uint64_t shards) {
  if (rank < 0 || shards == 0) return;
  const auto here = static_cast<std::int64_t>(std::min<std::uint64_t>(shards, 1U << 30));
  const bool is_fewest = ranks == 0 || here < fewest || (here == fewest && rank < slowest);
  if (is_fewest) fewest = here, slowest = rank;
  most = std::max(most, here);
  ++ranks;
}

std::string to_text(const ShardTotals& totals) {
  const std::int64_t numbers[] = {totals.ranks, totals.fewest, totals.most, totals.slowest,
                                  totals.won_us};
  return number_list(numbers);
}

std::optional<ShardTotals> parse_shard_totals(std::string_view text) {
  const auto numbers = parse_number_list(text, 5);
  if (!numbers) return std::nullopt;
  const auto& n = *numbers;
  return ShardTotals{n[0], n[1], n[2], n[3], n[4]};
}

std::string shard_line(const ShardTotals& totals) {
  if (totals.ranks == 0) return "";
  std::string line = "shards of an elastic job: " + std::to_string(totals.fewest);
  if (totals.most > totals.fewest) {
    line += " (rank " + std::to_string(totals.slowest) + ") to " + std::to_string(totals.most);
  }
  line += " per rank";
  if (totals.won_us == 0) return line;
  return line + "; with an even division the steps would have taken about " +
         took_text(std::chrono::microseconds(totals.won_us)) + " longer";
}

namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
constexpr double kShareMax = 63;

}  // namespace

char share_sign(double share) {
  const double in_63rds = std::clamp(share, 0.0, 1.0) * kShareMax;
  return kAlphabet[static_cast<std::size_t>(std::lround(in_63rds))];
}

std::optional<double> share_of_sign(char sign) {
  const std::size_t at = kAlphabet.find(sign);
  if (at == std::string_view::npos) return std::nullopt;
  return static_cast<double>(at) / kShareMax;
}

void TimeBins::halve() {
  for (std::size_t i = 0; i < bins_.size(); ++i) {
    Bin bin = bins_[i];
    bins_[i] = {};
    Bin& into = bins_[i / 2];
    for (std::size_t p = 0; p < kBinParts; ++p) into.parts[p] += bin.parts[p];
    into.any = into.any || bin.any;
  }
  bins_.resize((bins_.size() + 1) / 2);
  width_ *= 2;
}

void TimeBins::add(Time from, Time until, const TimeParts& more) {
  DDPRUN_ASSERT(from >= Time{0});
  if (until <= from || until > kTimeMax) return;
  while (until > width_ * static_cast<int>(kBinsMax)) halve();
  const auto last = static_cast<std::size_t>((until - Time(1)) / width_);
  if (bins_.size() <= last) bins_.resize(last + 1);
  const auto whole = static_cast<double>((until - from).count());
  for (auto i = static_cast<std::size_t>(from / width_); i <= last; ++i) {
    const Time begin = std::max(from, width_ * static_cast<std::int64_t>(i));
    const Time end = std::min(until, width_ * static_cast<std::int64_t>(i + 1));
    const double share = static_cast<double>((end - begin).count()) / whole;
    bins_[i].any = true;
    for (std::size_t p = 0; p < kBinParts; ++p) {
      bins_[i].parts[p] += share * static_cast<double>(more[kBinPart[p]].count());
    }
  }
}

std::optional<std::array<double, kBinParts>> TimeBins::shares(std::size_t bin) const {
  if (bin >= bins_.size() || !bins_[bin].any) return std::nullopt;
  std::array<double, kBinParts> shares = bins_[bin].parts;
  for (double& share : shares) share /= static_cast<double>(width_.count());
  return shares;
}

std::optional<std::array<double, kBinParts>> TimeBins::shares(Time from, Time until) const {
  std::array<double, kBinParts> sum{};
  double seen = 0;
  from = std::max(from, Time{0});
  for (auto i = static_cast<std::size_t>(from / width_); i < bins_.size(); ++i) {
    const Time begin = std::max(from, width_ * static_cast<std::int64_t>(i));
    const Time end = std::min(until, width_ * static_cast<std::int64_t>(i + 1));
    if (begin >= until) break;
    const auto bin = shares(i);
    if (!bin) continue;
    const auto time = static_cast<double>((end - begin).count());
    seen += time;
    for (std::size_t p = 0; p < kBinParts; ++p) sum[p] += time * (*bin)[p];
  }
  if (seen <= 0) return std::nullopt;
  for (double& share : sum) share /= seen;
  return sum;
}

std::string to_text(const TimeBins& bins) {
  std::string text = std::to_string(bins.width_.count()) + ":";
  for (std::size_t i = 0; i < bins.bins_.size(); ++i) {
    const auto shares = bins.shares(i);
    if (!shares) text += '.';
    for (std::size_t p = 0; shares && p < kBinParts; ++p) text += share_sign((*shares)[p]);
  }
  return text;
}

std::optional<TimeBins> parse_time_bins(std::string_view text) {
  TimeBins bins;
  std::int64_t width = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), width);
  if (error != std::errc{} || width < 1 || width > kTimeMax.count()) return std::nullopt;
  text.remove_prefix(static_cast<std::size_t>(stop - text.data()));
  if (!text.starts_with(':')) return std::nullopt;
  text.remove_prefix(1);
  bins.width_ = TimeBins::Time(width);
  while (!text.empty()) {
    if (bins.bins_.size() == TimeBins::kBinsMax) return std::nullopt;
    TimeBins::Bin& bin = bins.bins_.emplace_back();
    const bool empty = text.front() == '.';
    bin.any = !empty;
    if (!empty && text.size() < kBinParts) return std::nullopt;
    for (std::size_t p = 0; !empty && p < kBinParts; ++p) {
      const auto share = share_of_sign(text[p]);
      if (!share) return std::nullopt;
      bin.parts[p] = *share * static_cast<double>(width);
    }
    text.remove_prefix(empty ? 1 : kBinParts);
  }
  return bins;
}

namespace {

struct Row {
  const char* name;
  const char* label;
};

constexpr Row kRows[] = {
    {"rendezvous", "rendezvous"}, {"startup", "start-up"},  {"outside", "outside"},
    {"forward", "forward"},       {"backward", "backward"}, {"transfer", "transfer"},
    {"waiting", "waiting"},       {"steps", "steps"},       {"checkpoint", "checkpoint"},
    {"lost", "lost work"},        {"restart", "restart"},   {"spare", "idle spare"},
    {"gone", "not in the run"},   {"unknown", "unknown"},   {"end", "end"}};
static_assert(std::size(kRows) == kTimeParts);

}  // namespace

double ratio(TimeParts::Time part, TimeParts::Time whole) {
  return whole.count() > 0 ? static_cast<double>(part.count()) / static_cast<double>(whole.count())
                           : 0;
}

TimeParts::Time between(TimePoint from, TimePoint until) {
  return std::chrono::duration_cast<TimeParts::Time>(std::max(until, from) - from);
}

const char* name_of(TimePart part) { return kRows[static_cast<std::size_t>(part)].name; }
const char* label_of(TimePart part) { return kRows[static_cast<std::size_t>(part)].label; }

bool is_kept(TimePart part) { return part >= TimePart::kOutside && part <= TimePart::kSteps; }

TimeParts::Time TimeParts::sum() const {
  return std::accumulate(times.begin(), times.end(), Time{0});
}

TimeParts::Time TimeParts::kept() const {
  Time sum{0};
  for (std::size_t i = 0; i < kTimeParts; ++i) {
    if (is_kept(static_cast<TimePart>(i))) sum += times[i];
  }
  return sum;
}

void TimeParts::add(const TimeParts& more) {
  // All parts of such a sum together are still a number, whatever agents have claimed.
  constexpr Time kMost{std::int64_t{1} << 58};
  for (std::size_t i = 0; i < kTimeParts; ++i) {
    times[i] = std::min(times[i] + std::min(more.times[i], kMost), kMost);
  }
}

std::string to_text(const TimeParts& parts) {
  std::string text;
  std::size_t commas = 0;
  for (std::size_t i = 0; i < kTimeParts; ++i, ++commas) {
    DDPRUN_ASSERT(parts.times[i].count() >= 0);
    if (parts.times[i].count() == 0) continue;
    text.append(commas, ',');
    commas = 0;
    text += std::to_string(parts.times[i].count());
  }
  return text;
}

std::optional<TimeParts> parse_time_parts(std::string_view text) {
  constexpr std::size_t kFieldsMax = 64;
  TimeParts parts;
  for (std::size_t i = 0; !text.empty(); ++i) {
    if (i == kFieldsMax) return std::nullopt;
    const std::size_t comma = text.find(',');
    const std::string_view field = text.substr(0, comma);
    std::int64_t value = 0;
    const auto [stop, error] = std::from_chars(field.data(), field.data() + field.size(), value);
    const bool whole = error == std::errc{} && stop == field.data() + field.size();
    if (!field.empty() && !whole) return std::nullopt;
    if (value < 0 || value > kTimeMax.count()) return std::nullopt;
    constexpr auto kUnknown = static_cast<std::size_t>(TimePart::kUnknown);
    TimeParts::Time& part = parts.times[i < kTimeParts ? i : kUnknown];
    part += TimeParts::Time(value);
    if (part > kTimeMax) return std::nullopt;
    text = comma == std::string_view::npos ? "" : text.substr(comma + 1);
  }
  return parts;
}

TimeParts::Time LedgerTotals::in_run() const {
  return parts.sum() - parts[TimePart::kSpare] - parts[TimePart::kGone];
}

double LedgerTotals::share(TimePart part) const { return ratio(parts[part], in_run()); }

bool LedgerTotals::has_goodput() const {
  return parts.kept().count() > 0 || parts[TimePart::kLost].count() > 0;
}

double LedgerTotals::goodput() const { return ratio(parts.kept(), in_run()); }

}  // namespace ddprun
