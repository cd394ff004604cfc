// What a file says that it is for, which an earlier run has kept, under any bytes.

#include "tests/fuzz/agent/kept_fuzz.h"

#include <string_view>

#include "agent/process/kept_images.h"
#include "common/assert.h"

namespace ddprun::fuzz {

void fuzz_kept(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto facts = agent::decode_kept_facts(bytes);
  if (!facts) return;
  const std::string written = agent::encode(*facts);
  DDPRUN_ASSERT(written.size() <= agent::kKeptFactsMax);
  const auto again = agent::decode_kept_facts(written);
  DDPRUN_ASSERT(again && *again == *facts);
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_kept(data, size);
  return 0;
}
#endif
