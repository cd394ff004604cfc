#include "common/release.h"

#ifndef DDPRUN_VERSION
#define DDPRUN_VERSION "0.0.0"
#endif

namespace ddprun {

const char* release() { return DDPRUN_VERSION; }

}  // namespace ddprun
