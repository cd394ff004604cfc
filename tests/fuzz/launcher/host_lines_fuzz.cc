// What the script of --host-discovery prints, under any bytes.

#include "tests/fuzz/launcher/host_lines_fuzz.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "common/assert.h"
#include "launcher/hosts/host_watch.h"

namespace ddprun::fuzz {

void fuzz_host_lines(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto hosts = launcher::hosts_in_lines(text);
  if (!hosts) {
    for (const char letter : hosts.error().context) {
      DDPRUN_ASSERT(static_cast<unsigned char>(letter) >= ' ' && letter != '\x7f');
    }
    return;
  }
  DDPRUN_ASSERT(hosts->size() <= launcher::kListedHostsMax);
  std::set<std::string> names;
  for (const launcher::HostEntry& host : *hosts) {
    DDPRUN_ASSERT(names.insert(host.name).second && !host.name.empty());
    for (const std::string& word : {host.name, host.user}) {
      DDPRUN_ASSERT(!word.starts_with('-'));
      DDPRUN_ASSERT(word.find_first_of(" \t\n;$`'\"|&<>()") == std::string::npos);
    }
    DDPRUN_ASSERT(!host.workers || *host.workers >= 1);
  }
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_host_lines(data, size);
  return 0;
}
#endif
