#pragma once
// Counts and durations as people say them: "1 node", "3 nodes", "2.5 s".

#include <string>

#include "common/time.h"

namespace ddprun {

std::string number_of(int n, const char* thing);
std::string seconds_text(Milliseconds duration);

}  // namespace ddprun
