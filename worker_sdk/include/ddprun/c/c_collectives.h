#ifndef DDPRUN_C_COLLECTIVES_H
#define DDPRUN_C_COLLECTIVES_H
/* Collectives and messages: ddprun_submit() has all of them, blocking and not; the functions below
   it are the common ones in one line each. process_group.h documents the operations. Include
   ddprun/c_api.h. */

#include "ddprun/c/c_base.h"
#include "ddprun/c/c_group.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddprun_work ddprun_work;

/* The arrays of a call: `in` and `out` point to one array each, or to one for each rank.

     operation        in                   out
     all_reduce       -                    1, in place
     broadcast        -                    1, in place
     reduce           1                    root: 1, may be `in`; others: -
     all_gather       1                    1 or world_size
     reduce_scatter   1 or world_size      1
     all_to_all       1 or world_size      as many as `in`
     gather           1                    root: 1 or world_size; others: -
     scatter          root: as gather's    1
     send             1                    -
     recv             -                    1
     barrier          -                    -

   One array with a part for each rank has equal parts, in the order of ranks. Arrays for each rank
   lie anywhere and, but for gather and scatter, may have different counts: in all_gather and
   reduce_scatter those of rank r are the same on all ranks; in all_to_all in[r] of rank s is as
   long as out[s] of rank r, and all ranks pass arrays for each rank, or none does. */
enum {
  DDPRUN_ALL_REDUCE = 1,
  DDPRUN_BROADCAST = 2,
  DDPRUN_ALL_GATHER = 3,
  DDPRUN_SEND = 4,
  DDPRUN_RECV = 5,
  DDPRUN_BARRIER = 6,
  DDPRUN_REDUCE_SCATTER = 8,
  DDPRUN_ALL_TO_ALL = 9,
  DDPRUN_GATHER = 10,
  DDPRUN_SCATTER = 11,
  DDPRUN_REDUCE = 12
};

enum {
  DDPRUN_IN_STREAM = 1, /* CallOptions::stream is `stream`; NULL is CUDA's default stream. */
  DDPRUN_ON_HOST = 2    /* CallOptions::on_host. */
};

/* Set the fields that an operation does not use to 0. */
typedef struct {
  size_t size;
  int32_t operation;
  ddprun_op op; /* Of reductions. */
  const ddprun_buffer* in;
  size_t ins; /* How many arrays `in` points to. */
  const ddprun_buffer* out;
  size_t outs;
  int32_t root; /* broadcast, reduce, gather, scatter: the root; send: to whom; recv: from whom. */
  /* Of send and recv, CallOptions::tag: messages of one source, destination and tag match in their
     order and wait for nothing else. -1: all messages between two ranks match in their order, and
     stand in one queue with the group's other operations. */
  int32_t tag;
  int64_t timeout_ms; /* 0: the group's op_timeout. */
  double factor;      /* Of DDPRUN_PREMUL_SUM. */
  void* stream;
  uint32_t flags;
  int32_t reserved; /* 0. */
} ddprun_call;

/* Issues an operation. `work` NULL: blocks until it is done. Else *work is its handle: a thread of
   the group runs it after those issued before, and the arrays must stay until it is done; the
   structs are only used during this call. An argument that is wrong is DDPRUN_BAD_ARGUMENT here,
   with *work NULL; any later failure is the work's. */
ddprun_status ddprun_submit(ddprun_group* group, const ddprun_call* call, ddprun_work** work);

/* Works may be used from any thread, each by one at a time. */
ddprun_status ddprun_work_wait(ddprun_work* work);
/* Sets *done to 1 if the operation has ended within `limit_ms`, and returns as ddprun_work_wait();
   else sets it to 0 and returns DDPRUN_OK, while the operation continues. */
ddprun_status ddprun_work_wait_for(ddprun_work* work, int64_t limit_ms, int* done);
/* As wait, but blocks the host even if the operation is in a stream. */
ddprun_status ddprun_work_synchronize(ddprun_work* work);
/* 1 once ddprun_work_wait() would not block, else 0. */
int ddprun_work_done(const ddprun_work* work);
/* Fills *info, whose size the caller has set, with the error that wait would return; its status is
   DDPRUN_OK if there is none, or the operation has not ended. */
ddprun_status ddprun_work_error(const ddprun_work* work, ddprun_error_info* info);
/* When the operation started, by CLOCK_MONOTONIC, and how long it took, in nanoseconds; 0 while it
   has not ended. */
ddprun_status ddprun_work_times(const ddprun_work* work, int64_t* started_ns, int64_t* duration_ns);
void ddprun_work_destroy(ddprun_work* work); /* Waits and discards the error. */

/* timeout_ms: 0 selects the group's. */
ddprun_status ddprun_all_reduce(ddprun_group* group, const ddprun_buffer* inout, ddprun_op op,
                                int64_t timeout_ms);
/* `out` of other ranks than the root is ignored. */
ddprun_status ddprun_reduce(ddprun_group* group, const ddprun_buffer* in, const ddprun_buffer* out,
                            ddprun_op op, int root, int64_t timeout_ms);
ddprun_status ddprun_reduce_scatter(ddprun_group* group, const ddprun_buffer* in,
                                    const ddprun_buffer* out, ddprun_op op, int64_t timeout_ms);
ddprun_status ddprun_broadcast(ddprun_group* group, const ddprun_buffer* inout, int root,
                               int64_t timeout_ms);
ddprun_status ddprun_all_gather(ddprun_group* group, const ddprun_buffer* in,
                                const ddprun_buffer* out, int64_t timeout_ms);
ddprun_status ddprun_all_to_all(ddprun_group* group, const ddprun_buffer* in,
                                const ddprun_buffer* out, int64_t timeout_ms);
ddprun_status ddprun_gather(ddprun_group* group, const ddprun_buffer* in, const ddprun_buffer* out,
                            int root, int64_t timeout_ms);
ddprun_status ddprun_scatter(ddprun_group* group, const ddprun_buffer* in, const ddprun_buffer* out,
                             int root, int64_t timeout_ms);
ddprun_status ddprun_send(ddprun_group* group, const ddprun_buffer* in, int destination,
                          int64_t timeout_ms);
ddprun_status ddprun_recv(ddprun_group* group, const ddprun_buffer* out, int source,
                          int64_t timeout_ms);
ddprun_status ddprun_barrier(ddprun_group* group, int64_t timeout_ms);
/* With ddprun_work_wait() as above. */
ddprun_status ddprun_all_reduce_async(ddprun_group* group, const ddprun_buffer* inout, ddprun_op op,
                                      int64_t timeout_ms, ddprun_work** work);

/* --- objects.h: bytes whose number only the sender knows. Collective. --- */

/* *all are those of the root, on every rank; valid until this thread's next call of one of these
   three functions. `bytes` of other ranks is ignored. */
ddprun_status ddprun_broadcast_bytes(ddprun_group* group, const void* bytes, size_t count, int root,
                                     const void** all, size_t* all_count);
/* Those of rank r are the next counts[r] of *all, after those of the ranks before. */
ddprun_status ddprun_all_gather_bytes(ddprun_group* group, const void* bytes, size_t count,
                                      const void** all, const size_t** counts);
/* The same on the root; on other ranks *all and *counts are NULL. */
ddprun_status ddprun_gather_bytes(ddprun_group* group, const void* bytes, size_t count, int root,
                                  const void** all, const size_t** counts);

#ifdef __cplusplus
}
#endif

#endif
