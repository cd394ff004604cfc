// What agents report of their ledgers, under any bytes.

#include "tests/fuzz/ledger_fuzz.h"

#include "common/assert.h"
#include "common/ledger/place_ledger.h"
#include "common/ledger/time_parts.h"

namespace ddprun::fuzz {

void fuzz_ledger(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto parts = parse_time_parts(text)) {
    DDPRUN_ASSERT(parse_time_parts(to_text(*parts)) == parts);
    DDPRUN_ASSERT(parts->sum() >= parts->kept() && parts->kept().count() >= 0);
  }
  if (const auto spans = parse_time_spans(text)) {
    DDPRUN_ASSERT(parse_time_spans(to_text(*spans)) == spans);
    for (const TimeSpan& span : *spans) DDPRUN_ASSERT(span.from <= span.until);
  }
  if (const auto bins = parse_time_bins(text)) {
    const std::string again = to_text(*bins);
    const auto read = parse_time_bins(again);
    DDPRUN_ASSERT(read && to_text(*read) == again);
    const auto shares = bins->shares(TimeParts::Time(0), kTimeMax);
    if (shares) DDPRUN_ASSERT((*shares)[0] >= 0 && (*shares)[0] <= 1.0001);
  }
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_ledger(data, size);
  return 0;
}
#endif
