// The standard input of a ddprun that --hosts started, under any bytes.

#include "tests/fuzz/orders_fuzz.h"

#include <string_view>

#include "common/assert.h"
#include "launcher/hosts/remote_node.h"

namespace ddprun::fuzz {

void fuzz_orders(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  if (const auto orders = launcher::decode_orders(text)) {
    const auto again = launcher::decode_orders(launcher::encode(*orders));
    DDPRUN_ASSERT(again && *again == *orders);
    DDPRUN_ASSERT(!orders->argv.empty());
  }
  if (const auto signal = launcher::decode_signal(text)) {
    DDPRUN_ASSERT(launcher::encode_signal(*signal) == text);
  }
  const auto code = launcher::exit_code_in(text, "n");
  DDPRUN_ASSERT(!code || (*code >= 0 && *code <= 255));
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_orders(data, size);
  return 0;
}
#endif
