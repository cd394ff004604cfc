#include "common/ledger/time_bins.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "common/assert.h"

namespace ddprun {
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

}  // namespace ddprun
