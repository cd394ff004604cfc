// Accounts of runs, as a user may give them to `ddprunctl whatif --from`, under any bytes.

#include "tests/fuzz/launcher/account_fuzz.h"

#include <cmath>
#include <string_view>

#include "common/assert.h"
#include "launcher/whatif/comparison.h"
#include "launcher/whatif/run_facts.h"

namespace ddprun::fuzz {

void fuzz_account(const std::uint8_t* data, std::size_t size) {
  using namespace launcher;
  const auto facts = read_run_facts({reinterpret_cast<const char*>(data), size});
  if (!facts) return;
  const RunTimes times = facts->times();
  for (const double time : {times.start, times.restart, times.change, times.growth, times.refill,
                            times.notice, times.repair, times.checkpoint}) {
    DDPRUN_ASSERT(std::isfinite(time) && time >= 0);
  }
  DDPRUN_ASSERT(facts->shape.nodes_min >= 1 && facts->shape.nodes_min <= facts->shape.nodes_max);
  DDPRUN_ASSERT(facts->shape.node_ranks >= 1 && facts->shape.spares >= 0);
  DDPRUN_ASSERT(facts->shape.spare_nodes >= 0 && facts->shape.interval > 0);
  if (facts->shape.nodes_max > 100) return;  // It would take long.
  const auto compared = compare(*facts, {.length = 10 * facts->node_mtbf.value});
  if (!compared) return;
  for (const Choice& answer : compared->answers) {
    DDPRUN_ASSERT(answer.expected.goodput >= 0 && answer.expected.goodput <= 1.000001);
  }
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_account(data, size);
  return 0;
}
#endif
