#pragma once
// An event of state machines whose deadline() names a time. Pure.

namespace ddprun {

struct Tick {};  // That time has come.

}  // namespace ddprun
