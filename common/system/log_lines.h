#pragma once
// For whoever has a line of another kind on the terminal that ddprun's own lines (log.h) go to.

#include <functional>

namespace ddprun::log {

// Called before each line that is said. Empty: nobody is.
void before_lines(std::function<void()> then);

}  // namespace ddprun::log
