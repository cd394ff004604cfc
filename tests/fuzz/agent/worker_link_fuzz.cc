// The link between a worker and its agent, under any bytes.

#include "tests/fuzz/agent/worker_link_fuzz.h"

#include <string_view>

#include "common/assert.h"
#include "common/worker_link.h"

namespace ddprun::fuzz {
namespace {

using namespace worker_link;

void encodes_to_itself(const auto& message, auto&& decode) {
  const std::string bytes = encode(message);
  DDPRUN_ASSERT(bytes.size() <= kMessageBytesMax);
  const auto again = decode(bytes);
  DDPRUN_ASSERT(again && *again == message);
}

}  // namespace

void fuzz_worker_link(const std::uint8_t* data, std::size_t size) {
  const std::string_view datagram(reinterpret_cast<const char*>(data), size);
  const auto of_worker = decode_worker_message(datagram);
  if (of_worker) encodes_to_itself(*of_worker, decode_worker_message);
  const auto of_agent = decode_agent_message(datagram);
  if (of_agent) encodes_to_itself(*of_agent, decode_agent_message);
  DDPRUN_ASSERT(!of_worker || !of_agent);
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_worker_link(data, size);
  return 0;
}
#endif
