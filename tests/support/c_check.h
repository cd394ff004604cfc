/* What tests in C share: CHECK says what does not hold, and exits with 1. */
#ifndef DDPRUN_TESTS_C_CHECK_H
#define DDPRUN_TESTS_C_CHECK_H

#include <stdio.h>
#include <stdlib.h>

#include "ddprun/c_api.h"

static void check(int ok, const char* what, int line) {
  if (ok) return;
  fprintf(stderr, "line %d: %s does not hold; last error: %s\n", line, what, ddprun_last_error());
  exit(1);
}
#define CHECK(condition) check((condition) ? 1 : 0, #condition, __LINE__)

#endif
