#pragma once
// What the keys and columns of `ddprunctl top` mean. Pure. Used by top_screen.cc.

#include <string>
#include <vector>

#include "launcher/watch/screen_text.h"

namespace ddprun::launcher {

std::vector<std::string> top_help(const ScreenStyle& style);

}  // namespace ddprun::launcher
