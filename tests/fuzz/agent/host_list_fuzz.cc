// Slurm's host lists under any bytes: never more names than a run has nodes, none too long or with
// a letter that no host has, and a plain list of them expands to itself.

#include "tests/fuzz/agent/host_list_fuzz.h"

#include <string>
#include <string_view>

#include "common/assert.h"
#include "launcher/options/hosts.h"
#include "launcher/options/options.h"

namespace ddprun::fuzz {

void fuzz_host_list(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto hosts = launcher::expand_host_list(text);
  if (!hosts) return;
  DDPRUN_ASSERT(!hosts->empty());
  DDPRUN_ASSERT(hosts->size() <= static_cast<std::size_t>(launcher::kNodesMax));
  std::string plain;
  for (const std::string& host : *hosts) {
    DDPRUN_ASSERT(!host.empty() && host.size() <= launcher::kHostNameBytesMax);
    DDPRUN_ASSERT(host.find_first_of("[], \n/@:") == std::string::npos && host[0] != '-');
    plain += (plain.empty() ? "" : ",") + host;
  }
  if (plain.size() > launcher::kHostListBytesMax) return;
  const auto again = launcher::expand_host_list(plain);
  DDPRUN_ASSERT(again && *again == *hosts);
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_host_list(data, size);
  return 0;
}
#endif
