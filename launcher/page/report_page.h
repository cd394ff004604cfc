#pragma once
// `ddprun --report-html`: one page that holds the account of a run and the script that draws it. It
// needs no network and no library. Called by launcher/run, and by ddprunctl.

#include <optional>
#include <string>
#include <string_view>

#include "common/error.h"

namespace ddprun::launcher {

// Facts that the account lacks because the daemon does not know them. Empty: not known here either.
struct PageFacts {
  std::string command{};
  std::string started_utc{};  // "2026-11-20T21:04:12Z"
};

// std::nullopt: `account` is not an account. Any text in it remains data.
std::optional<std::string> report_page(std::string_view account, const PageFacts& facts);

// A text as it may stand in a script element of type application/json.
std::string embedded_json(std::string_view json);

}  // namespace ddprun::launcher
