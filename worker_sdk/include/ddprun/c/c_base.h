#ifndef DDPRUN_C_BASE_H
#define DDPRUN_C_BASE_H
/* Statuses, errors, element types, reductions and arrays, which all functions of ddprun/c_api.h
   use. Include that. */

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
  DDPRUN_STATE_LOST = 12,
  DDPRUN_WRONG_RESULT = 13,
  DDPRUN_INTERNAL = 100 /* Out of memory, or a bug. */
};
typedef int32_t ddprun_status;

/* As DataType in types.h. A bool is one byte, 0 or 1; a complex number is its real and its
   imaginary part. Elements of other types travel as DDPRUN_U8. */
enum {
  DDPRUN_F32 = 0,
  DDPRUN_F64 = 1,
  DDPRUN_F16 = 2,
  DDPRUN_BF16 = 3,
  DDPRUN_I32 = 4,
  DDPRUN_I64 = 5,
  DDPRUN_U8 = 6,
  DDPRUN_I8 = 7,
  DDPRUN_I16 = 8,
  DDPRUN_U16 = 9,
  DDPRUN_U32 = 10,
  DDPRUN_U64 = 11,
  DDPRUN_BOOL = 12,
  DDPRUN_C64 = 13, /* Two f32. */
  DDPRUN_C128 = 14 /* Two f64. */
};
typedef int32_t ddprun_type;

/* As ReduceOp in types.h, which lists what is defined for which type. */
enum {
  DDPRUN_SUM = 0,
  DDPRUN_AVG = 1,
  DDPRUN_MIN = 2,
  DDPRUN_MAX = 3,
  DDPRUN_PROD = 4,
  DDPRUN_BAND = 5,
  DDPRUN_BOR = 6,
  DDPRUN_BXOR = 7,
  DDPRUN_PREMUL_SUM = 8 /* Each rank's elements times its `factor` (ddprun_call), then summed. */
};
typedef int32_t ddprun_op;

/* An array of `count` elements; not owned. It is in host memory or, on the backend nccl, in the
   memory of the rank's GPU. The struct itself is only used during the call to which it is passed.
 */
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

#define DDPRUN_MISSING_MAX 64

/* A failure, in parts. Ranks are those of the group; -1 if not known. Texts end with a zero, and
   are cut where they do not fit. */
typedef struct {
  size_t size;
  ddprun_status status;  /* DDPRUN_OK: there was none, and nothing else is set. */
  int32_t rank;          /* The rank that reports the failure. */
  int32_t peer;          /* The rank that caused it. */
  int32_t missing_count; /* Ranks that did not call in time; may exceed DDPRUN_MISSING_MAX. */
  int64_t waited_ms;     /* How long the operation had run. */
  int32_t missing[DDPRUN_MISSING_MAX]; /* The first of these ranks, ascending. */
  char host[256];                      /* Of `rank`. */
  char operation[256];                 /* "all_reduce #17 (f32 x 1000, sum)" */
  char text[1024];                     /* What happened, without the fields above. */
  char message[2048];                  /* The whole sentence: ddprun_last_error(). */
} ddprun_error_info;

int ddprun_c_api_version(void);   /* DDPRUN_C_API_VERSION of the library. */
const char* ddprun_version(void); /* Its release: "0.1.0". */

/* The message of this thread's last failed call; "" if none. Valid until its next call. */
const char* ddprun_last_error(void);
int ddprun_last_error_peer(void); /* The rank that caused the failure; -1 if unknown. */

/* The same failure in parts. *info, whose size the caller has set, is filled; the function fails
   only if `info` is null or of an unknown size, and then keeps the failure before. */
ddprun_status ddprun_last_error_info(ddprun_error_info* info);

#ifdef __cplusplus
}
#endif

#endif
