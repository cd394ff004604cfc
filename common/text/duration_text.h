#pragma once
// Counts, numbers and durations as people say them: "1 node", "3 nodes", "2.5 s".

#include <string>
#include <vector>

#include "common/time.h"

namespace ddprun {

std::string number_of(int n, const char* thing);
std::string seconds_text(Milliseconds duration);

// "0-2, 5" for {0, 1, 2, 5}; `numbers` are in order.
std::string ranges_text(const std::vector<int>& numbers);

}  // namespace ddprun
