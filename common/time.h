#pragma once
// The one clock of ddprun. Pure modules take a TimePoint as an argument; only the I/O around them
// reads the clock.

#include <chrono>

namespace ddprun {

using TimePoint = std::chrono::steady_clock::time_point;
using Duration = std::chrono::steady_clock::duration;
using Milliseconds = std::chrono::milliseconds;

// An event of state machines with a deadline(). Pure.
struct Tick {};  // The deadline has come.

}  // namespace ddprun
