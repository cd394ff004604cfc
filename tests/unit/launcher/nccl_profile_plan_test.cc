#include "launcher/plan/own_files.h"

#include <catch2/catch.hpp>

namespace ddprun::launcher {
namespace {

const std::string kOurs = "/opt/ddprun/libexec/ddprun/libddprun-nccl-profiler.so";

TEST_CASE("NCCL profile: NCCL loads ours if the user asks for it, and not otherwise", "[plan]") {
  CHECK(plan_nccl_profile({{"DDPRUN_NCCL_PROFILE", "1"}}, kOurs).plugin == kOurs);
  CHECK(plan_nccl_profile({{"DDPRUN_NCCL_PROFILE", "/tmp/out"}}, kOurs).plugin == kOurs);
  for (const Environment& silent : {Environment{}, Environment{{"DDPRUN_NCCL_PROFILE", ""}},
                                    Environment{{"DDPRUN_NCCL_PROFILE", "0"}}}) {
    CHECK(plan_nccl_profile(silent, kOurs).plugin.empty());
    CHECK(plan_nccl_profile(silent, "").warning.empty());
  }
}

TEST_CASE("NCCL profile: what stands in its way is said, and left as it is", "[plan]") {
  const auto plan_of = [](const std::string& other, const std::string& plugin) {
    const auto plan =
        plan_nccl_profile({{"DDPRUN_NCCL_PROFILE", "1"}, {"NCCL_PROFILER_PLUGIN", other}}, plugin);
    CHECK(plan.plugin.empty());
    return plan.warning;
  };
  const std::string end = ": there will be no profile, though DDPRUN_NCCL_PROFILE is set";
  CHECK(plan_of("inspector", kOurs) ==
        "NCCL_PROFILER_PLUGIN names another profiler, inspector" + end);
  CHECK(plan_of("", "") == "libddprun-nccl-profiler.so was not found" + end);
  const std::string deep = "/" + std::string(254, 'x');
  CHECK(plan_of("", deep) == deep + " is a longer path than NCCL takes" + end);
  CHECK(plan_of("/elsewhere/libddprun-nccl-profiler.so", kOurs).empty());
}

}  // namespace
}  // namespace ddprun::launcher
