#pragma once
// Facts of a node that other files read: its name, and the time of day there.

#include <cstdint>

#include "launcher/doctor/node_facts.h"

namespace ddprun::doctor {

namespace fact {

inline constexpr Text kHost{"host"};
inline constexpr Whole kWallNs{"wall_ns"};                // Since 1970.
inline constexpr Real kClockOffsetMs{"clock_offset_ms"};  // Against the first node.
inline constexpr Real kClockMarginMs{"clock_doubt_ms"};   // The offset may be wrong by so much.

}  // namespace fact

// The time of day in ns since 1970, by the library's clock and not the kernel's: programs read the
// library's.
std::int64_t wall_ns();

}  // namespace ddprun::doctor
