#pragma once
// How near a mistyped word comes to a known one. Pure.

#include <cstddef>
#include <string_view>

namespace ddprun {

// How many letters must be inserted, dropped, changed or swapped with their neighbour to make `b`
// of `a`.
std::size_t edit_distance(std::string_view a, std::string_view b);

}  // namespace ddprun
