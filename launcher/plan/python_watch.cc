#include "launcher/plan/python_watch.h"

#include <algorithm>

namespace ddprun::launcher {
namespace {

bool asks_for_stalls(const Options& options) {
  const bool given = std::any_of(options.given.begin(), options.given.end(),
                                 [](const GivenOption& o) { return o.flag == "--on-stall"; });
  return given && options.stalls.on_stall != agent::OnStall::kOff;
}

}  // namespace

PythonWatch plan_python_watch(const Options& options, const Environment& environment,
                              const std::string& folder) {
  const bool times = options.report || options.report_html;
  if (folder.empty() || value_of(environment, kPythonWatchVariable) == "0") return {};
  if (!times && !asks_for_stalls(options)) return {};
  const std::string path = value_of(environment, kPythonPathVariable);
  return {.watch = times ? "times" : "phases",
          .python_path = path.empty() ? folder : folder + ":" + path,
          .may_ask = asks_for_stalls(options)};
}

}  // namespace ddprun::launcher
