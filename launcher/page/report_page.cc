#include "launcher/page/report_page.h"

#include <nlohmann/json.hpp>

#include "common/embedded_file.h"
#include "common/ledger/time_parts.h"

// The page, with a mark in place of the data.
DDPRUN_EMBEDDED_FILE(ddprun_report_page, DDPRUN_REPORT_PAGE);

namespace ddprun::launcher {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kMark = "@DATA@";

}  // namespace

// No tag and no comment can begin or end in the result. Outside of strings JSON has none of these
// characters.
std::string embedded_json(std::string_view json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    switch (c) {
      case '<': text += "\\u003c"; break;
      case '>': text += "\\u003e"; break;
      case '&': text += "\\u0026"; break;
      default: text += c;
    }
  }
  return text;
}

std::optional<std::string> report_page(std::string_view account, const PageFacts& facts) {
  ordered_json data = ordered_json::parse(account, nullptr, /*allow_exceptions=*/false);
  if (!data.is_object() || !data.contains("schema") || !data.contains("run")) return std::nullopt;
  if (data["schema"] != kAccountSchema) return std::nullopt;
  ordered_json& run = data["run"];
  if (!run.is_object()) return std::nullopt;
  if (!facts.command.empty()) run["command"] = facts.command;
  if (!facts.started_utc.empty()) run["started_utc"] = facts.started_utc;
  const std::string_view page(ddprun_report_page, ddprun_report_page_end);
  const std::size_t mark = page.find(kMark);
  if (mark == std::string_view::npos) return std::nullopt;
  constexpr auto kReplace = ordered_json::error_handler_t::replace;
  return std::string(page.substr(0, mark)) +
         embedded_json(data.dump(-1, ' ', /*ensure_ascii=*/true, kReplace)) +
         std::string(page.substr(mark + kMark.size()));
}

}  // namespace ddprun::launcher
