#pragma once
// How a place's steps were divided over time, in at most kBinsMax bins that grow with the run: the
// picture of the report (docs/ledger.md). Pure. Filled by agent/ledger, drawn from by
// rendezvous/ledger.

#include <array>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/ledger/time_parts.h"

namespace ddprun {

constexpr std::size_t kBinParts = 4;
// What the bins divide; waiting is what is left of a bin.
inline constexpr std::array kBinPart = {TimePart::kOutside, TimePart::kForward, TimePart::kBackward,
                                        TimePart::kTransfer};

class TimeBins {
 public:
  using Time = TimeParts::Time;
  static constexpr std::size_t kBinsMax = 200;
  static constexpr Time kFirstWidth = std::chrono::milliseconds(50);

  // Steps took `more` between two times since the ledger began.
  void add(Time from, Time until, const TimeParts& more);

  Time width() const { return width_; }
  std::size_t size() const { return bins_.size(); }
  // The share of each part in a bin; nothing where no step was made.
  std::optional<std::array<double, kBinParts>> shares(std::size_t bin) const;
  // Of any stretch of time.
  std::optional<std::array<double, kBinParts>> shares(Time from, Time until) const;

 private:
  struct Bin {
    std::array<double, kBinParts> parts{};  // Microseconds.
    bool any = false;
  };
  friend std::string to_text(const TimeBins& bins);
  friend std::optional<TimeBins> parse_time_bins(std::string_view text);

  void halve();

  Time width_ = kFirstWidth;
  std::vector<Bin> bins_;
};

// A share in 63rds as one sign of the report's alphabet.
char share_sign(double share);
std::optional<double> share_of_sign(char sign);

// "50000:" and four signs a bin, or one "." where nothing is known.
std::string to_text(const TimeBins& bins);
std::optional<TimeBins> parse_time_bins(std::string_view text);

}  // namespace ddprun
