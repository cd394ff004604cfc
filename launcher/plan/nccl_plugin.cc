#include "launcher/plan/nccl_plugin.h"

namespace ddprun::launcher {
namespace {

// NCCL copies the name into an array of 255 bytes, and takes what fits.
constexpr std::size_t kLongestName = 254;

}  // namespace

NcclProfilePlan plan_nccl_profile(const Environment& environment, const std::string& plugin) {
  const std::string asked = value_of(environment, "DDPRUN_NCCL_PROFILE");
  if (asked.empty() || asked == "0") return {};
  const std::string ignored = ": there will be no profile, though DDPRUN_NCCL_PROFILE is set";
  const std::string other = value_of(environment, kNcclPluginVariable);
  if (!other.empty()) {
    if (other.ends_with(kNcclPluginFile)) return {};  // Of a ddprun around this one.
    return {.warning =
                std::string(kNcclPluginVariable) + " names another profiler, " + other + ignored};
  }
  if (plugin.empty()) return {.warning = std::string(kNcclPluginFile) + " was not found" + ignored};
  if (plugin.size() > kLongestName) {
    return {.warning = plugin + " is a longer path than NCCL takes" + ignored};
  }
  return {.plugin = plugin};
}

}  // namespace ddprun::launcher
