#pragma once
// Which ddprun this is. Pure.

namespace ddprun {

// "0.1.0"; the same in all programs of one build.
const char* release();

}  // namespace ddprun
