#ifndef DDPRUN_C_API_H
#define DDPRUN_C_API_H
/* The SDK for C and for languages that can call C. The C++ header of the same name documents each
   call and its errors; the headers below document only the differences. docs/c.md shows how the
   parts fit together.

   - Functions return a status: DDPRUN_OK or the kind of failure. ddprun_last_error() then returns
     the message for the calling thread. No exception leaves the library.
   - _init, _create and _async functions and ddprun_submit() create handles; _destroy functions free
     them and accept NULL. A handle must not be used after its _destroy. Handles may be destroyed in
     any order: what was created from a group keeps what it needs of it. Returned pointers belong to
     the handle.
   - Every struct but ddprun_sample begins with its size, which the caller sets: sizeof(struct ...).
     From it the library knows which fields an older program has; it rejects sizes that it does not
     know. All elements of an array of structs have the same size. Structs that the library returns
     are filled in the caller's memory, or last for a call, as ddprun_fill_shards has one; arrays of
     them would have the library's stride. ddprun_sample, of which the library returns arrays, keeps
     its three fields for ever.
   - Numbers with names are int32_t, never of an enum type, whose width the compiler chooses.
   - A null handle or pointer is DDPRUN_BAD_ARGUMENT. Functions that return no status return -1 (""
     instead of a string) for a null handle, and set ddprun_last_error().
   - Times are in milliseconds (_ms) or nanoseconds (_ns), sizes of memory in bytes, counts of
     arrays in elements.
   - This interface is stable: functions and fields are only added, at the end; numbers are kept.

   libddprun.so exports only these functions: `pkg-config --libs ddprun-c`, or dlopen().
   libddprun_cxx.a (`pkg-config --libs ddprun`) also has them; it is C++ and needs -lstdc++. */

#include "ddprun/c/c_base.h"
#include "ddprun/c/c_checkpoint.h"
#include "ddprun/c/c_collectives.h"
#include "ddprun/c/c_elastic.h"
#include "ddprun/c/c_functions.h"
#include "ddprun/c/c_group.h"
#include "ddprun/c/c_process.h"
#include "ddprun/c/c_store.h"
#include "ddprun/c/c_timer.h"
#include "ddprun/c/c_training.h"

#endif
