// Records of runs, and what a daemon answers for its history, under any bytes.

#include "tests/fuzz/launcher/history_fuzz.h"

#include <algorithm>
#include <string_view>

#include "common/assert.h"
#include "common/history/run_record.h"
#include "launcher/watch/history_text.h"

namespace ddprun::fuzz {
namespace {

using namespace launcher;

void require_harmless(const std::string& text) {
  for (const char letter : text) {
    DDPRUN_ASSERT(static_cast<unsigned char>(letter) >= ' ' || letter == '\n');
    DDPRUN_ASSERT(letter != '\x7f');
  }
}

void show(const std::vector<PastRun>& runs) {
  const LocalTime time{.now = 1'795'435'200, .ahead = 3600};
  const ScreenStyle style;
  require_harmless(history_text(runs, time, style));
  require_harmless(history_text(runs, time, style, KeptBy::kDaemon));
  for (const PastRun& run : runs) require_harmless(past_run_text(run, time, style));
  (void)history_json(runs);
}

}  // namespace

void fuzz_history(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto record = decode_record(text)) {
    const std::string written = encode(*record);
    const auto again = decode_record(written);
    DDPRUN_ASSERT(again && encode(*again) == written);
    DDPRUN_ASSERT(decode_record(encode_plain(*record)).has_value());
    DDPRUN_ASSERT(encode(summary_of(*record)).size() <= written.size() + 16);
    constexpr std::size_t kFew = 2048;
    const std::string within = encode_within(*record, kFew);
    DDPRUN_ASSERT(decode_record(within).has_value());
    (void)utc_text(record->started);
    for (const bool is_stderr : {false, true}) (void)tails_text(*record, -1, is_stderr);
    for (const RunState state : {RunState::kRunning, RunState::kEnded, RunState::kVanished}) {
      show({{.name = "a", .record = *record, .state = state}});
    }
  }
  if (const auto runs = decode_history(text)) show(*runs);
  RunRecord ended;
  (void)add_ending(ended, text);
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_history(data, size);
  return 0;
}
#endif
