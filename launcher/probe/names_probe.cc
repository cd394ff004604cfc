// What this node's own name means here.

#include <unistd.h>

#include <array>
#include <chrono>

#include "launcher/doctor/fact_names.h"
#include "launcher/plan/resolve_name.h"
#include "launcher/probe/probe.h"

namespace ddprun::doctor {

void probe_names(const ProbeRequest&, Facts& facts) {
  std::array<char, 256> name{};
  if (::gethostname(name.data(), name.size() - 1) != 0) return;
  using Clock = std::chrono::steady_clock;
  const TimePoint began = Clock::now();
  std::string addresses;
  for (const std::string& address : launcher::resolve_name(name.data())) {
    addresses += (addresses.empty() ? "" : " ") + address;
  }
  const std::chrono::duration<double, std::milli> took = Clock::now() - began;
  facts.set(fact::kOwnAddresses, addresses);
  facts.set(fact::kNameMs, took.count());
}

}  // namespace ddprun::doctor
