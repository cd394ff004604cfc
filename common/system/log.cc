#include "common/system/log.h"

#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/text/display.h"

namespace ddprun::log {
namespace {

using nlohmann::ordered_json;

Format format_of_lines = Format::kText;
std::function<void()> before_line;

spdlog::level::level_enum spdlog_level(Level level) {
  switch (level) {
    case Level::kDebug: return spdlog::level::debug;
    case Level::kInfo: return spdlog::level::info;
    case Level::kWarning: return spdlog::level::warn;
    case Level::kError: return spdlog::level::err;
  }
  return spdlog::level::info;
}

// The first is before the text of a line, the second its "level".
struct LevelNames {
  const char* before;
  const char* level;
};

LevelNames names_of(Level level) {
  switch (level) {
    case Level::kDebug: return {"", "debug"};
    case Level::kInfo: return {"", "info"};
    case Level::kWarning: return {"warning: ", "warning"};
    case Level::kError: return {"error: ", "error"};
  }
  return {"", "info"};
}

// All but the time and the braces, which are the pattern's.
std::string json_members(Level level, std::string_view text, const Fields& about) {
  ordered_json object = {{"level", names_of(level).level},
                         {"who", spdlog::default_logger_raw()->name()},
                         {"text", text}};
  if (!about.run.empty()) object["run"] = about.run;
  if (!about.node.empty()) object["node"] = about.node;
  if (!about.peer.empty()) object["peer"] = about.peer;
  const std::string whole = object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  return whole.substr(1, whole.size() - 2);
}

// Each line with nothing in it that a terminal would obey. Texts may quote other programs, so a
// line of a text that would read as one of ddprun's own is moved to the right.
std::string safe_lines(std::string_view text) {
  std::string safe;
  const std::string quoted = without_escapes(text, Colours::kRemoved);
  for (std::string_view rest = quoted;;) {
    const std::size_t end = std::min(rest.find_first_of("\n\t"), rest.size());
    if (safe.ends_with('\n') && rest.starts_with("ddprun")) safe += "  ";
    safe += plain_line(rest.substr(0, end));
    if (end == rest.size()) return safe;
    safe += rest[end];
    rest.remove_prefix(end + 1);
  }
}

void write(Level level, std::string_view text, const Fields& about) {
  const auto to = spdlog_level(level);
  if (!spdlog::should_log(to)) return;
  if (before_line) before_line();
  if (format_of_lines == Format::kJson) {
    spdlog::log(to, "{}", json_members(level, text, about));
  } else {
    spdlog::log(to, "{}{}", names_of(level).before, safe_lines(text));
  }
}

}  // namespace

void start(std::string program, Level level, Format format) {
  format_of_lines = format;
  auto logger = std::make_shared<spdlog::logger>(std::move(program),
                                                 std::make_shared<spdlog::sinks::stderr_sink_st>());
  if (format == Format::kJson) {
    logger->set_pattern(R"({"time":"%Y-%m-%dT%H:%M:%S.%eZ",%v})", spdlog::pattern_time_type::utc);
  } else {
    // Debug lines carry the time, so that a log of several nodes can be read side by side.
    logger->set_pattern(level == Level::kDebug ? "%n: %H:%M:%S.%e %v" : "%n: %v");
  }
  logger->set_level(spdlog_level(level));
  spdlog::set_default_logger(std::move(logger));
}

void before_lines(std::function<void()> then) { before_line = std::move(then); }

void debug(std::string_view text, const Fields& about) { write(Level::kDebug, text, about); }
bool debugs() { return spdlog::should_log(spdlog::level::debug); }
void info(std::string_view text, const Fields& about) { write(Level::kInfo, text, about); }
void warning(std::string_view text, const Fields& about) { write(Level::kWarning, text, about); }
void error(std::string_view text, const Fields& about) { write(Level::kError, text, about); }

}  // namespace ddprun::log
