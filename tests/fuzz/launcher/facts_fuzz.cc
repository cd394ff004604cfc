// What the nodes of `doctor --hosts` send, under any bytes.

#include "tests/fuzz/launcher/facts_fuzz.h"

#include <string_view>

#include "common/assert.h"
#include "launcher/doctor/health_report.h"
#include "launcher/doctor/node_facts.h"

namespace ddprun::fuzz {

void fuzz_facts(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto facts = doctor::decode_facts(text)) {
    const auto again = doctor::decode_facts(doctor::encode(*facts));
    DDPRUN_ASSERT(again && *again == *facts);
    const doctor::Need need{.workers = 2, .several = true, .program = "train"};
    const doctor::NodeFacts node{"a", *facts}, other{"b", {}};
    const auto one = doctor::report_of_node(node, need);
    const auto two = doctor::report_of_nodes({node, other, node}, need);
    for (const auto& report : {one, two}) {
      DDPRUN_ASSERT(!doctor::screen(report, {.width = 40}).empty());
      DDPRUN_ASSERT(!doctor::screen(report, {.utf8 = false}).empty());
      DDPRUN_ASSERT(!doctor::report_json(report).empty());
    }
  }
  if (const auto request = launcher::decode_request(text)) {
    DDPRUN_ASSERT(launcher::decode_request(launcher::encode(*request)) == request);
  }
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_facts(data, size);
  return 0;
}
#endif
