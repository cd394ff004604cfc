// What workers answer about PyTorch's flight recorder, under any bytes.

#include "tests/fuzz/agent/flight_fuzz.h"

#include <algorithm>
#include <string_view>

#include "agent/health/flight_record.h"
#include "common/assert.h"

namespace ddprun::fuzz {
namespace {

std::optional<agent::FlightRecord> record_of(std::string_view text, bool ended) {
  auto record = agent::decode_flight_record(text);
  if (!record) return std::nullopt;
  record->ended = ended;
  for (const agent::FlightGroup& group : record->groups) {
    for (std::size_t i = 1; i < group.calls.size(); ++i) {
      DDPRUN_ASSERT(group.calls[i - 1].number < group.calls[i].number);
    }
  }
  return std::move(*record);
}

}  // namespace

void fuzz_flight(const std::uint8_t* data, std::size_t size) {
  constexpr std::size_t kLongest = 8192;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string_view first = text.substr(0, size / 2), second = text.substr(size / 2);
  const agent::FlightRecords records = {{0, record_of(text, false)},
                                        {1, record_of(first, false)},
                                        {2, record_of(second, true)},
                                        {3, record_of(text, true)}};
  const std::string text_of = agent::flight_text(records);
  DDPRUN_ASSERT(!text_of.empty() && text_of.size() < kLongest);
  DDPRUN_ASSERT(
      std::all_of(text_of.begin(), text_of.end(), [](char c) { return c >= ' ' && c <= '~'; }));
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_flight(data, size);
  return 0;
}
#endif
