#pragma once
// The output of `ddprunctl whatif`: for people, and as JSON. Pure.

#include <string>

#include "launcher/watch/top_screen.h"
#include "launcher/whatif/comparison.h"

namespace ddprun::launcher {

std::string whatif_text(const Compared& all, const ScreenStyle& style = {});
std::string whatif_json(const Compared& all);  // Schema "ddprun.whatif/1" (docs/whatif.md).

}  // namespace ddprun::launcher
