#pragma once
// DDPRUN_ASSERT stays on in release builds. It guards against bugs in ddprun itself, never against
// what a peer, a user or the kernel may do: those are Failures.

#include <cstdio>
#include <cstdlib>

#define DDPRUN_ASSERT(condition)                                                        \
  do {                                                                                  \
    if (!(condition)) {                                                                 \
      std::fprintf(stderr, "%s:%d: ddprun bug: %s does not hold\n", __FILE__, __LINE__, \
                   #condition);                                                         \
      std::abort();                                                                     \
    }                                                                                   \
  } while (false)
