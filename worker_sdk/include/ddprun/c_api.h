#ifndef DDPRUN_C_API_H
#define DDPRUN_C_API_H
/* The SDK for C and for languages that can call C: process groups, DistributedDataParallel,
   DistributedSampler, clip_grad_norm. The C++ header of the same name documents each call and its
   errors; this header documents only the differences.

   - Functions return a status: DDPRUN_OK or the kind of failure. ddprun_last_error() then returns
     the message for the calling thread. No exception leaves the library.
   - _init, _create and _async functions create handles; _destroy functions free them and accept
     NULL. A handle must not be used after its _destroy. Handles may be destroyed in any order: what
     was created from a group keeps what it needs of it. Returned pointers belong to the handle.
   - Every struct begins with its size, which the caller sets: sizeof(struct ...). From it the
     library knows which fields an older program has; it rejects sizes that it does not know. All
     elements of an array of structs have the same size.
   - A null handle or pointer is DDPRUN_BAD_ARGUMENT. Functions that return no status return -1 (""
     instead of a string) for a null handle, and set ddprun_last_error().
   - This interface is stable: functions and fields are only added, at the end; numbers are kept.

   libddprun.so exports only these functions: `pkg-config --libs ddprun-c`, or dlopen().
   libddprun_cxx.a (`pkg-config --libs ddprun`) also has them; it is C++ and needs -lstdc++. */

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DDPRUN_C_API_VERSION 1

enum {
  DDPRUN_OK = 0,
  DDPRUN_BAD_ARGUMENT = 1, /* As ErrorKind in error.h. */
  DDPRUN_BAD_ENVIRONMENT = 2,
  DDPRUN_UNREACHABLE = 3,
  DDPRUN_TIMED_OUT = 4,
  DDPRUN_PEER_LOST = 5,
  DDPRUN_MISMATCH = 6,
  DDPRUN_ABORTED = 7,
  DDPRUN_UNSUPPORTED = 8,
  DDPRUN_SYSTEM = 9,
  DDPRUN_CORRUPT = 10,
  DDPRUN_MEMBERSHIP_CHANGED = 11,
  DDPRUN_INTERNAL = 100 /* Out of memory, or a bug. */
};
typedef int32_t ddprun_status;

enum {
  DDPRUN_F32 = 0,
  DDPRUN_F64 = 1,
  DDPRUN_F16 = 2,
  DDPRUN_BF16 = 3,
  DDPRUN_I32 = 4,
  DDPRUN_I64 = 5,
  DDPRUN_U8 = 6
};
typedef int32_t ddprun_type;

enum { DDPRUN_SUM = 0, DDPRUN_AVG = 1, DDPRUN_MIN = 2, DDPRUN_MAX = 3, DDPRUN_PROD = 4 };
typedef int32_t ddprun_op;

typedef struct ddprun_group ddprun_group;
typedef struct ddprun_work ddprun_work;
typedef struct ddprun_ddp ddprun_ddp;
typedef struct ddprun_sampler ddprun_sampler;

/* An array of `count` elements in host memory; not owned. The struct itself is only used during
   the call to which it is passed. */
typedef struct {
  size_t size;
  void* data;
  size_t count;
  ddprun_type type;
  int32_t reserved; /* 0. */
} ddprun_buffer;

/* const ddprun_buffer b = DDPRUN_BUFFER(values, 10, DDPRUN_F32); */
#define DDPRUN_BUFFER(data, count, type) \
  { sizeof(ddprun_buffer), (data), (count), (type), 0 }

int ddprun_c_api_version(void); /* DDPRUN_C_API_VERSION of the library. */

/* The message of this thread's last failed call; "" if none. Valid until its next call. */
const char* ddprun_last_error(void);
int ddprun_last_error_peer(void); /* The rank that caused the failure; -1 if unknown. */

/* --- process_group.h --- */

/* NULL for a string, -1 for the rank and 0 for other numbers select the defaults of C++. */
typedef struct {
  size_t size;
  const char* init_method;
  const char* backend;
  int32_t rank;
  int32_t world_size;
  int64_t init_timeout_ms;
  int64_t op_timeout_ms;
} ddprun_init_options;

ddprun_status ddprun_group_init(const ddprun_init_options* options, ddprun_group** group);
void ddprun_group_destroy(ddprun_group* group);
/* *part is NULL for a rank whose color is negative. */
ddprun_status ddprun_group_split(ddprun_group* group, int color, int key, ddprun_group** part);
void ddprun_group_abort(ddprun_group* group); /* Can be called from any thread. */

int ddprun_rank(const ddprun_group* group);
int ddprun_world_size(const ddprun_group* group);
int ddprun_local_rank(const ddprun_group* group);
int ddprun_restart_count(const ddprun_group* group);
const char* ddprun_backend(const ddprun_group* group);

/* timeout_ms: 0 selects the group's. */
ddprun_status ddprun_all_reduce(ddprun_group* group, const ddprun_buffer* inout, ddprun_op op,
                                int64_t timeout_ms);
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

ddprun_status ddprun_all_reduce_async(ddprun_group* group, const ddprun_buffer* inout, ddprun_op op,
                                      int64_t timeout_ms, ddprun_work** work);
ddprun_status ddprun_work_wait(ddprun_work* work);
/* 1 once ddprun_work_wait() would not block, else 0. */
int ddprun_work_done(const ddprun_work* work);
void ddprun_work_destroy(ddprun_work* work); /* Waits and discards the error. */

/* --- distributed_data_parallel.h --- */

typedef struct {
  size_t size;
  const char* name; /* Copied; may be NULL. */
  void* data;       /* The value: an array as in ddprun_buffer. */
  size_t count;
  const int64_t* shape; /* Copied; NULL: one dimension. */
  size_t dimensions;
  ddprun_type type;
  int32_t reserved; /* 0. */
} ddprun_parameter;

typedef struct {
  size_t size;
  size_t first_bucket_bytes; /* 0: the default of C++, here and below. */
  size_t bucket_bytes;
  int64_t checksum_every;
  int32_t find_unused;
  int32_t static_graph;
} ddprun_ddp_options;

/* `options` may be NULL. */
ddprun_status ddprun_ddp_create(ddprun_group* group, const ddprun_parameter* parameters,
                                size_t count, const ddprun_ddp_options* options, ddprun_ddp** ddp);
void ddprun_ddp_destroy(ddprun_ddp* ddp);
/* Sets the location, count and type of the gradient in *gradient, whose size the caller has set;
   query again after each ddprun_ddp_begin_backward(). */
ddprun_status ddprun_ddp_gradient(ddprun_ddp* ddp, size_t parameter, ddprun_buffer* gradient);
ddprun_status ddprun_ddp_zero_gradients(ddprun_ddp* ddp);
/* synchronise = 0: as a pass within no_sync() of C++. */
ddprun_status ddprun_ddp_begin_backward(ddprun_ddp* ddp, int synchronise);
ddprun_status ddprun_ddp_mark_ready(ddprun_ddp* ddp, size_t parameter); /* From any thread. */
ddprun_status ddprun_ddp_finish_backward(ddprun_ddp* ddp);
/* Ends a pass that cannot be finished; the program must inform the peers before they step. */
ddprun_status ddprun_ddp_cancel_backward(ddprun_ddp* ddp);

/* Times of the last synchronised step, in nanoseconds: sync_report.h. */
ddprun_status ddprun_ddp_last_step(const ddprun_ddp* ddp, int64_t* comm_ns, int64_t* exposed_ns);

/* --- distributed_sampler.h --- */

typedef struct {
  size_t size;
  int64_t length;
  uint64_t seed;
  int32_t world_size;
  int32_t rank;
  int32_t shuffle;
  int32_t drop_last;
} ddprun_sampler_options;

ddprun_status ddprun_sampler_create(const ddprun_sampler_options* options,
                                    ddprun_sampler** sampler);
void ddprun_sampler_destroy(ddprun_sampler* sampler);
ddprun_status ddprun_sampler_set_epoch(ddprun_sampler* sampler, int64_t epoch);
/* Valid until the next call with this sampler. */
ddprun_status ddprun_sampler_indices(ddprun_sampler* sampler, const int64_t** indices,
                                     size_t* count);
ddprun_status ddprun_sampler_advance(ddprun_sampler* sampler, int64_t count);
ddprun_status ddprun_sampler_state(const ddprun_sampler* sampler, int64_t* epoch,
                                   int64_t* consumed);
ddprun_status ddprun_sampler_load(ddprun_sampler* sampler, int64_t epoch, int64_t consumed);

/* --- clip_grad_norm.h --- */

ddprun_status ddprun_clip_grad_norm(const ddprun_buffer* gradients, size_t count, double max_norm,
                                    double norm_type, int error_if_nonfinite, double* norm);

#ifdef __cplusplus
}
#endif

#endif
