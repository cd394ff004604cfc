// Slurm's host lists, and numbers of tasks, under any bytes: never more names than a run has nodes,
// none too long or with a letter that no host has, and a plain list of them expands to itself.

#include "tests/fuzz/common/host_list_fuzz.h"

#include <string>
#include <string_view>

#include "common/assert.h"
#include "common/scheduler/slurm_step.h"

namespace ddprun::fuzz {

void fuzz_host_list(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto tasks = scheduler::tasks_on_node(text, 3);
  DDPRUN_ASSERT(!tasks || (*tasks >= 1 && *tasks <= scheduler::most_tasks(text)));
  const auto hosts = scheduler::expand_host_list(text);
  if (!hosts) return;
  DDPRUN_ASSERT(!hosts->empty());
  DDPRUN_ASSERT(hosts->size() <= static_cast<std::size_t>(scheduler::kListedHostsMax));
  std::string plain;
  for (const std::string& host : *hosts) {
    DDPRUN_ASSERT(!host.empty() && host.size() <= scheduler::kHostNameBytesMax);
    DDPRUN_ASSERT(host.find_first_of("[], \n/@:") == std::string::npos && host[0] != '-');
    plain += (plain.empty() ? "" : ",") + host;
  }
  if (plain.size() > scheduler::kHostListBytesMax) return;
  const auto again = scheduler::expand_host_list(plain);
  DDPRUN_ASSERT(again && *again == *hosts);
}

}  // namespace ddprun::fuzz

#ifdef DDPRUN_LIBFUZZER
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  ddprun::fuzz::fuzz_host_list(data, size);
  return 0;
}
#endif
