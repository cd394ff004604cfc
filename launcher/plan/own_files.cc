#include "launcher/plan/own_files.h"

#include <algorithm>
#include <filesystem>

namespace ddprun::launcher {

std::string own_python(const std::string& bin, const agent::FileProbe& files) {
  using agent::FileKind;
  const std::filesystem::path folder = bin, prefix = folder.parent_path();
  const bool is_virtual = files.kind(prefix / "pyvenv.cfg") != FileKind::kAbsent;
  const bool is_conda = files.kind(prefix / "conda-meta") == FileKind::kFolder;
  if (!is_virtual && !is_conda) return "";
  const std::string python = folder / "python3";
  return files.kind(python) == FileKind::kExecutable ? python : "";
}

namespace {

// NCCL copies the name into an array of 255 bytes, and takes what fits.
constexpr std::size_t kLongestName = 254;

}  // namespace

NcclProfilePlan plan_nccl_profile(const Environment& environment, const std::string& plugin) {
  const std::string requested = value_of(environment, "DDPRUN_NCCL_PROFILE");
  if (requested.empty() || requested == "0") return {};
  const std::string ignored = ": there will be no profile, though DDPRUN_NCCL_PROFILE is set";
  const std::string other = value_of(environment, kNcclPluginVariable);
  if (!other.empty()) {
    if (other.ends_with(kNcclPluginFile)) return {};  // Set by a ddprun around this one.
    return {.warning =
                std::string(kNcclPluginVariable) + " names another profiler, " + other + ignored};
  }
  if (plugin.empty()) return {.warning = std::string(kNcclPluginFile) + " was not found" + ignored};
  if (plugin.size() > kLongestName) {
    return {.warning = plugin + " is a longer path than NCCL takes" + ignored};
  }
  return {.plugin = plugin};
}

namespace {

bool wants_stall_watch(const Options& options) {
  const bool given = std::any_of(options.given.begin(), options.given.end(),
                                 [](const GivenOption& o) { return o.flag == "--on-stall"; });
  return given && options.stalls.on_stall != agent::OnStall::kOff;
}

}  // namespace

PythonWatch plan_python_watch(const Options& options, const Environment& environment,
                              const std::string& folder) {
  const bool times = options.report || options.report_html;
  const bool may_watch = value_of(environment, kPythonWatchVariable) != "0";
  const bool watches = may_watch && (times || wants_stall_watch(options));
  if (folder.empty() || (!watches && options.preload.empty())) return {};
  const std::string path = value_of(environment, kPythonPathVariable);
  PythonWatch plan{.python_path = path.empty() ? folder : folder + ":" + path,
                   .preload = options.preload};
  if (!watches) return plan;
  plan.watch = times ? "times" : "phases";
  plan.may_query = wants_stall_watch(options);
  return plan;
}

}  // namespace ddprun::launcher
