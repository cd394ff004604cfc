#include "common/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <memory>

namespace ddprun::log {
namespace {

spdlog::level::level_enum spdlog_level(Level level) {
  switch (level) {
    case Level::kDebug: return spdlog::level::debug;
    case Level::kInfo: return spdlog::level::info;
    case Level::kWarning: return spdlog::level::warn;
    case Level::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

}  // namespace

void start(std::string who, Level level) {
  auto logger = std::make_shared<spdlog::logger>(std::move(who),
                                                 std::make_shared<spdlog::sinks::stderr_sink_st>());
  // Debug lines carry the time, so that a log of several nodes can be read side by side.
  logger->set_pattern(level == Level::kDebug ? "%n: %H:%M:%S.%e %v" : "%n: %v");
  logger->set_level(spdlog_level(level));
  spdlog::set_default_logger(std::move(logger));
}

void debug(std::string_view text) { spdlog::debug("{}", text); }
void info(std::string_view text) { spdlog::info("{}", text); }
void warning(std::string_view text) { spdlog::warn("warning: {}", text); }
void error(std::string_view text) { spdlog::error("error: {}", text); }

}  // namespace ddprun::log
