// What ranks exchange through the store before they call NCCL, under any bytes.

#include "tests/fuzz/agent/gpu_facts_fuzz.h"

#include <algorithm>

#include "common/assert.h"
#include "worker_sdk/join/meeting.h"
#include "worker_sdk/nccl/nccl_preflight.h"

namespace ddprun::fuzz {

using worker_sdk::decode_gpu_facts;
using worker_sdk::GpuFacts;

void fuzz_gpu_facts(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto facts = decode_gpu_facts(text)) {
    DDPRUN_ASSERT(decode_gpu_facts(worker_sdk::encode(*facts)).value() == *facts);
    // Beside an ordinary rank it is refused or taken, and the blamed rank exists.
    const GpuFacts usual{.error = "", .nccl_version = 22809, .device = 0, .bus_id = "0000:01:00.0"};
    const std::vector<std::string> hosts{"a", "a", "b"};
    const auto wrong = worker_sdk::objection({usual, *facts, usual}, hosts, hosts);
    DDPRUN_ASSERT(!wrong || (wrong->culprit >= 0 && wrong->culprit < 3 && !wrong->text.empty()));
    DDPRUN_ASSERT(wrong || (facts->error.empty() && facts->nccl_version == 22809));
  }
  if (const auto settled = worker_sdk::decode_agreed(text, 1000)) {
    const auto again = worker_sdk::decode_agreed(worker_sdk::encode(*settled), 1000);
    DDPRUN_ASSERT(again.value() == *settled);
  }
  if (const auto bytes = worker_sdk::from_hex(text)) {
    std::string lower(text);
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](char c) { return c >= 'A' && c <= 'F' ? static_cast<char>(c + 32) : c; });
    DDPRUN_ASSERT(worker_sdk::to_hex(*bytes) == lower);
  }
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_gpu_facts(data, size);
  return 0;
}
#endif
