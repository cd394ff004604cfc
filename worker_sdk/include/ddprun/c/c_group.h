#ifndef DDPRUN_C_GROUP_H
#define DDPRUN_C_GROUP_H
/* Process groups: their life, their ranks, their memory. process_group.h documents the C++
   counterparts. Include ddprun/c_api.h. */

#include "ddprun/c/c_base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Threads: one thread at a time may be in a call of a group; a second one gets
   DDPRUN_BAD_ARGUMENT. Functions without this limit are marked. After fork(), the child may only
   destroy the handle; anything else is DDPRUN_BAD_ARGUMENT there. */
typedef struct ddprun_group ddprun_group;
typedef struct ddprun_memory ddprun_memory;

/* NULL for a string, -1 for the rank and 0 for other numbers select the defaults of C++. A
   world_size of 0 means that rank and world_size are the environment's. */
typedef struct {
  size_t size;
  const char* init_method;
  const char* backend;
  int32_t rank;
  int32_t world_size;
  int64_t init_timeout_ms;
  int64_t op_timeout_ms;
  const char* host;     /* InitOptions::host. */
  int32_t device_given; /* 1: NcclOptions::device is `device`; 0: it is chosen by the local rank. */
  int32_t device;
  int32_t max_ctas;   /* NcclOptions. */
  int32_t may_shrink; /* NcclOptions: 0 or 1. */
} ddprun_init_options;

/* Joins the job; blocks until every rank has called it. `options` may be NULL. */
ddprun_status ddprun_group_init(const ddprun_init_options* options, ddprun_group** group);

/* A key-value store of the program. Keys end with a zero; values are bytes. Each function returns
   0, or anything else if the store has failed. The library calls them from the thread that creates
   the group and from its own, one at a time for each group, until ddprun_group_destroy() has
   returned and all works and memory of the group are gone. They must not wait for other ranks, nor
   call the group: the library repeats `get` until the value is there. */
typedef struct {
  size_t size;
  void* user; /* The first argument of all functions. */
  int (*set)(void* user, const char* key, const void* value, size_t bytes);
  /* Sets *value to NULL if there is no such key. Else *value is valid until the next call of this
     store by the library. */
  int (*get)(void* user, const char* key, const void** value, size_t* bytes);
  /* Adds to a decimal counter that starts at 0; *sum is its new value. */
  int (*add)(void* user, const char* key, int64_t delta, int64_t* sum);
  int (*erase)(void* user, const char* key); /* May be NULL: nothing is erased. */
} ddprun_store_calls;

/* Rank `rank` of a group of `world_size` ranks that share a store. NULL and 0 select defaults. */
typedef struct {
  size_t size;
  const char* prefix;       /* Of the group's keys: never used before in this store. */
  const char* backend;      /* As ddprun_init_options; DDPRUN_BACKEND overrides it. */
  const char* host;         /* InitOptions::host. */
  const char* address;      /* This host's, numeric, for the others; NULL: detected. */
  const int32_t* job_ranks; /* By rank, its rank in the job; NULL: the group is the whole job. */
  int64_t init_timeout_ms;
  int64_t op_timeout_ms;
  int32_t rank;
  int32_t world_size;
  int32_t device_given; /* This and what follows: as ddprun_init_options. */
  int32_t device;
  int32_t max_ctas;
  int32_t may_shrink;
} ddprun_create_options;

/* Joins exactly the ranks of `options`, all of which call it, through a store of the program. The
   structs are used only during the call, except `user` and the functions. */
ddprun_status ddprun_group_create(const ddprun_store_calls* store,
                                  const ddprun_create_options* options, ddprun_group** group);

/* Completes queued operations, within the group's time limit, and leaves the job. */
void ddprun_group_destroy(ddprun_group* group);
/* The same within `limit_ms`: what has not ended by then is aborted, and DDPRUN_TIMED_OUT is
   returned. After it every operation is DDPRUN_ABORTED; the handle must still be destroyed. From
   any thread. */
ddprun_status ddprun_group_shutdown(ddprun_group* group, int64_t limit_ms);
/* *part is NULL for a rank whose color is negative. */
ddprun_status ddprun_group_split(ddprun_group* group, int color, int key, ddprun_group** part);
/* Of the ranks that call it, without those in `lost`; for use after a failure. Aborts this group.
   Ranks that do not call within `patience_ms` are excluded; 0: 10 s. ProcessGroup::shrink. */
ddprun_status ddprun_group_shrink(ddprun_group* group, const int32_t* lost, size_t count,
                                  int64_t patience_ms, ddprun_group** smaller);
void ddprun_group_abort(ddprun_group* group); /* Can be called from any thread. */

/* This and the following functions, except the last two, can be called from any thread. */
int ddprun_rank(const ddprun_group* group);
int ddprun_world_size(const ddprun_group* group);
int ddprun_local_rank(const ddprun_group* group);
int ddprun_local_world_size(const ddprun_group* group);
int ddprun_group_rank(const ddprun_group* group); /* The number of this node. */
int ddprun_restart_count(const ddprun_group* group);
const char* ddprun_run_id(const ddprun_group* group);
const char* ddprun_backend(const ddprun_group* group);
int ddprun_device(const ddprun_group* group); /* On nccl the number of the GPU; else -1. */
/* The name of a rank's host. */
const char* ddprun_host_of(const ddprun_group* group, int rank);

/* ProcessGroup::set_phase. "" or NULL: no phase. */
ddprun_status ddprun_set_phase(ddprun_group* group, const char* name);

/* On nccl: the stream of calls without one; `given` 0: the host waits for each call. Ignored by
   other backends. ProcessGroup::use_stream. */
ddprun_status ddprun_use_stream(ddprun_group* group, void* stream, int given);
/* Between arrays of this backend and of the host. ProcessGroup::copy and zero. */
ddprun_status ddprun_copy(ddprun_group* group, void* to, const void* from, size_t bytes);
ddprun_status ddprun_zero(ddprun_group* group, void* to, size_t bytes);

/* *fd becomes readable when an operation of ddprun_submit() has ended since the last read of its 8
   bytes: a non-blocking eventfd, open until the group is destroyed. Poll it, read it, then query
   the works. Operations in a CUDA stream do not signal. */
ddprun_status ddprun_group_completion_fd(ddprun_group* group, int* fd);

/* ProcessGroup::allocate: zeroed memory, on which all_reduce works without copies. Collective. It
   may outlive the group. */
ddprun_status ddprun_allocate(ddprun_group* group, size_t bytes, void** data,
                              ddprun_memory** memory);
void ddprun_memory_destroy(ddprun_memory* memory);

#ifdef __cplusplus
}
#endif

#endif
