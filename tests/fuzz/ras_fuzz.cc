// What comes out of the port that NCCL_RAS_ADDR names, under any bytes.

#include "tests/fuzz/ras_fuzz.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "common/assert.h"
#include "launcher/ctl/ras_report.h"

namespace ddprun::fuzz {
namespace {

constexpr std::size_t kLinesOfOneMax = 32;  // Of ras_report.cc.

}  // namespace

void fuzz_ras(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string once = launcher::repaired(text);
  DDPRUN_ASSERT(launcher::repaired(once) == once);
  const auto report = launcher::decode_ras(text);
  if (!report) return;
  const std::string shown = launcher::ras_text(*report);
  DDPRUN_ASSERT(!shown.empty() && shown.back() == '\n');
  // Nothing that a terminal obeys, or takes for a second line: control letters of one byte and two.
  for (std::size_t i = 0; i < shown.size(); ++i) {
    const auto letter = static_cast<unsigned char>(shown[i]);
    DDPRUN_ASSERT(letter == '\n' || (letter >= ' ' && letter != 0x7f));
    const bool c1 = letter == 0xc2 && static_cast<unsigned char>(shown[i + 1]) < 0xa0;
    DDPRUN_ASSERT(!c1);
  }
  DDPRUN_ASSERT(nlohmann::json::accept(nlohmann::json(shown).dump()));  // It throws at no UTF-8.
  const auto lines = static_cast<std::size_t>(std::count(shown.begin(), shown.end(), '\n'));
  DDPRUN_ASSERT(lines <= 2 + report->communicators.size() * (kLinesOfOneMax + 2));
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_ras(data, size);
  return 0;
}
#endif
