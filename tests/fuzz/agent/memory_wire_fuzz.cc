// What memory servers send each other, under any bytes.

#include "tests/fuzz/agent/memory_wire_fuzz.h"

#include <string>
#include <string_view>

#include "agent/memory/memory_wire.h"
#include "common/assert.h"

namespace ddprun::fuzz {

using namespace agent::memory;

void fuzz_memory_wire(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  if (const auto message = decode(bytes)) {
    const auto again = decode(encode(*message));
    DDPRUN_ASSERT(again && *again == *message);
    if (const auto* index = std::get_if<Index>(&*message)) {
      for (const Entry& entry : index->entries) {
        const std::string within = "/" + entry.path + "/";
        DDPRUN_ASSERT(within.find("/../") == std::string::npos && !within.starts_with("//"));
      }
    }
  }
  const std::string name = folder_name(bytes);
  DDPRUN_ASSERT(name.empty() || is_safe_path(name));
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_memory_wire(data, size);
  return 0;
}
#endif
