#pragma once
// Spans of time as text: "0,0,1200;10,52000,61000", which is part, begin and end in microseconds.
// Pure. Written by agent/ledger, read by rendezvous/ledger.

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/ledger/place_ledger.h"

namespace ddprun {

std::string to_text(const std::vector<TimeSpan>& spans);
// Nothing: that is no such text, or has more than PlaceLedger::kSpansMax + 4 spans. A part of a
// newer ddprun is kUnknown.
std::optional<std::vector<TimeSpan>> parse_time_spans(std::string_view text);

}  // namespace ddprun
