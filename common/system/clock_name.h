#pragma once
// Of which clock a process's times are (std::chrono::steady_clock): each boot has its own, and a
// container may. Times of two processes can be compared if the names are equal.

#include <string>

namespace ddprun {

std::string clock_name();

}  // namespace ddprun
