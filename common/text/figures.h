#pragma once
// Figures as ddprun's screens write them: three significant digits, one blank before the unit, two
// units of time at most. Pure.

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "common/time.h"

namespace ddprun {

std::string grouped(std::int64_t number);  // "5,249"
std::string percent_text(double share);    // "93.2 %"
std::string clock_text(double seconds);    // "1:41:40": hours, minutes, seconds.
std::string rate_text(double value);       // "1.38", "12.5", "230": such as steps per second.
std::string memory_text(std::uint64_t bytes);  // "2.41 GB", "310 MB", "0.10 MB": powers of ten.
// "4 ms", "840 ms", "24.6 s", "13 min 4 s", "2 h 14 min".
std::string took_text(std::chrono::microseconds time);
// Of several ranks together: "5,251 rank-s", "12.4 rank-h".
std::string rank_time_text(std::chrono::microseconds time);

// Counts, numbers and durations in words: "1 node", "3 nodes", "2.5 s".
std::string number_of(int n, const char* thing);
std::string seconds_text(Milliseconds duration);

// "0-2, 5" for {0, 1, 2, 5}; `numbers` are in order.
std::string ranges_text(const std::vector<int>& numbers);

}  // namespace ddprun
