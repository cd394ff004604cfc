// What comes out of the port that NCCL_RAS_ADDR names, under any bytes.

#include "tests/fuzz/ras_fuzz.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "common/assert.h"
#include "launcher/ras_report.h"

namespace ddprun::fuzz {

void fuzz_ras(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string once = launcher::repaired(text);
  DDPRUN_ASSERT(launcher::repaired(once) == once);
  const auto report = launcher::decode_ras(text);
  if (!report) return;
  const std::string shown = launcher::ras_text(*report);
  DDPRUN_ASSERT(!shown.empty() && shown.back() == '\n');
  DDPRUN_ASSERT(
      std::none_of(shown.begin(), shown.end(), [](char c) { return c == '\x1b' || c == '\r'; }));
  // A terminal gets UTF-8, whatever came: JSON refuses anything else.
  const auto replaced =
      nlohmann::json(shown).dump(-1, ' ', false, nlohmann::json::error_handler_t::ignore);
  DDPRUN_ASSERT(nlohmann::json::parse(replaced).get<std::string>() == shown);
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_ras(data, size);
  return 0;
}
#endif
