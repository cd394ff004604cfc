#include "launcher/run/messages.h"

#include "common/exit_status.h"
#include "common/system/log.h"

namespace ddprun::launcher {
namespace {

log::Level log_level(Talk talk) {
  switch (talk) {
    case Talk::kQuiet: return log::Level::kWarning;
    case Talk::kNormal: return log::Level::kInfo;
    case Talk::kVerbose: return log::Level::kDebug;
  }
  return log::Level::kInfo;
}

}  // namespace

void start_log(const std::string& name, const Options& options) {
  const bool json = options.log_format == agent::LineFormat::kJson;
  log::start(name, log_level(options.talk), json ? log::Format::kJson : log::Format::kText);
}

int fail(const Failure& failure) {
  const bool whole_sentence = failure.code == Errc::kBadOption || failure.code == Errc::kNotFound;
  log::error(whole_sentence ? failure.context : to_string(failure));
  return whole_sentence ? kExitUsage : kExitFailed;
}

}  // namespace ddprun::launcher
