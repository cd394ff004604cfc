#ifndef DDPRUN_C_FUNCTIONS_H
#define DDPRUN_C_FUNCTIONS_H
/* Functions of a program whose runtime may end one early and return any number. Include
   ddprun/c_api.h.

   Python's ctypes is such a runtime: it prints an exception that reaches it, also one that a signal
   handler raises before the function's first statement, and returns what was in memory. */

#include "ddprun/c/c_base.h"
#include "ddprun/c/c_elastic.h"
#include "ddprun/c/c_group.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The result of a function that has not set one: it fails. */
#define DDPRUN_NOT_ENDED (-2147483647 - 1)

/* Of the types that ddprun calls, but for ddprun_fill_shards. */
typedef struct {
  size_t size;
  ddprun_step_body body;
  ddprun_between between;
  ddprun_apply apply;
  ddprun_save_state save;
  ddprun_load_state load;
  int (*set)(void* user, const char* key, const void* value, size_t bytes); /* A store's. */
  int (*get)(void* user, const char* key, const void** value, size_t* bytes);
  int (*add)(void* user, const char* key, int64_t delta, int64_t* sum);
  int (*erase)(void* user, const char* key);
} ddprun_functions;

/* Functions to be passed in place of the program's, with a ddprun_functions of the program's as
   `user`, which they use whenever they are called. Each calls the function of its own name there,
   whose `user` is an int32_t*, and whose result is what it has set this to, not what it returns. */
const ddprun_functions* ddprun_functions_with_results(void);

#ifdef __cplusplus
}
#endif

#endif
