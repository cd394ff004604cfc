#ifndef DDPRUN_C_STORE_H
#define DDPRUN_C_STORE_H
/* The job's key-value store; store.h documents the C++ counterpart. Include ddprun/c_api.h.

   Keys are text, values bytes. From any thread; a call that waits blocks those of other threads. */

#include "ddprun/c/c_base.h"
#include "ddprun/c/c_group.h"

#ifdef __cplusplus
extern "C" {
#endif

ddprun_status ddprun_store_set(ddprun_group* group, const char* key, const void* value,
                               size_t bytes);
/* Waits until the key exists, at most `timeout_ms`. *value is valid until this thread's next
   ddprun_store_get(), and followed by a zero that *bytes does not count. */
ddprun_status ddprun_store_get(ddprun_group* group, const char* key, int64_t timeout_ms,
                               const void** value, size_t* bytes);
/* Adds to a decimal counter that starts at 0; *sum is its new value. The store of a job closes the
   connection if the key's value is not a decimal number, or the sum does not fit: then this and
   every later call fails with DDPRUN_UNREACHABLE. */
ddprun_status ddprun_store_add(ddprun_group* group, const char* key, int64_t delta, int64_t* sum);
/* *exist: 1 if all keys exist, else 0. */
ddprun_status ddprun_store_check(ddprun_group* group, const char* const* keys, size_t count,
                                 int* exist);
ddprun_status ddprun_store_wait(ddprun_group* group, const char* const* keys, size_t count,
                                int64_t timeout_ms);
/* *existed may be NULL. */
ddprun_status ddprun_store_erase(ddprun_group* group, const char* key, int* existed);

#ifdef __cplusplus
}
#endif

#endif
