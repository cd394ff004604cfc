#ifndef DDPRUN_C_TRAINING_H
#define DDPRUN_C_TRAINING_H
/* DistributedDataParallel, DistributedSampler, clip_grad_norm, GradScaler. Include ddprun/c_api.h.
 */

#include "ddprun/c/c_base.h"
#include "ddprun/c/c_group.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddprun_ddp ddprun_ddp;
typedef struct ddprun_sampler ddprun_sampler;
typedef struct ddprun_scaler ddprun_scaler;

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

/* How a bucket is averaged: hooks of comm_hook.h. */
enum {
  DDPRUN_HOOK_ALL_REDUCE = 0,
  DDPRUN_HOOK_FP16 = 1,
  DDPRUN_HOOK_BF16 = 2,
  DDPRUN_HOOK_NOOP = 3,
  DDPRUN_HOOK_POWER_SGD = 4
};

/* hooks::PowerSgdOptions. */
typedef struct {
  size_t size;
  int64_t rank;                     /* 0: the default of C++, which is 1. */
  int64_t start_step;               /* 0: all steps are compressed. C++ begins with step 1000. */
  double min_compression_rate;      /* 0: the default of C++. */
  double orthogonalization_epsilon; /* Added to norms. */
  uint64_t seed;
  int32_t no_error_feedback; /* 1: use_error_feedback is false. */
  int32_t cold_start;        /* 1: warm_start is false. */
} ddprun_power_sgd_options;

typedef struct {
  size_t size;
  size_t first_bucket_bytes; /* 0: the default of C++, here and below. */
  size_t bucket_bytes;
  int64_t checksum_every;
  int32_t find_unused;
  int32_t static_graph;
  int32_t keep_at_start; /* 1: DdpOptions::broadcast_at_start is false. */
  int32_t uneven_inputs;
  int32_t hook;   /* DDPRUN_HOOK_... */
  int32_t print;  /* SyncTimerOptions, as the following. */
  int64_t window; /* Steps; 0: the default of C++; -1: none. */
  const char* json_file;
  const char* trace_folder;
  const ddprun_power_sgd_options* power_sgd; /* Of that hook; NULL: all 0. */
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

/* DistributedDataParallel::begin_backward(unused): parameters that get no gradient in this pass. */
ddprun_status ddprun_ddp_begin_backward_without(ddprun_ddp* ddp, int synchronise,
                                                const size_t* unused, size_t count);
/* *used: 1 if any rank marked the parameter in the last pass, else 0. */
ddprun_status ddprun_ddp_used(const ddprun_ddp* ddp, size_t parameter, int* used);
/* *moved: 1 if the gradients are elsewhere now. Collective when due. */
ddprun_status ddprun_ddp_rebuild(ddprun_ddp* ddp, int* moved);
ddprun_status ddprun_ddp_join(ddprun_ddp* ddp); /* With uneven_inputs. Collective. */
ddprun_status ddprun_ddp_set_value(ddprun_ddp* ddp, size_t parameter, const ddprun_buffer* value);
/* Continues with the ranks of `next`. Collective there. */
ddprun_status ddprun_ddp_reconfigure(ddprun_ddp* ddp, ddprun_group* next);

/* Times of the last synchronised step, in nanoseconds: sync_report.h. */
ddprun_status ddprun_ddp_last_step(const ddprun_ddp* ddp, int64_t* comm_ns, int64_t* exposed_ns);

/* sync_report.h: of the last synchronised step, or of all so far if `of_all`. Times in nanoseconds.
 *report, whose size the caller has set, is filled. */
typedef struct {
  size_t size;
  int64_t steps;
  int64_t comm_ns;
  int64_t exposed_ns;
  int64_t contended_ns;
  int64_t outside_ns;
  int64_t forward_ns;
  int64_t backward_ns;
  int64_t waited_ns;
  int64_t unknown_ns;
  uint64_t bytes;
  int64_t buckets;
  int64_t dropped;
  int64_t data_ns; /* This and the next are not in outside_ns. */
  int64_t optimizer_ns;
} ddprun_sync_report;

ddprun_status ddprun_ddp_report(const ddprun_ddp* ddp, int of_all, ddprun_sync_report* report);
/* So that the forward pass is known from what lies between steps. */
ddprun_status ddprun_ddp_begin_forward(ddprun_ddp* ddp);
ddprun_status ddprun_ddp_end_forward(ddprun_ddp* ddp);
/* The last complete window of steps of all ranks as a JSON object; "" if there is none yet. Valid
   until this thread's next call of it. */
ddprun_status ddprun_ddp_window_json(const ddprun_ddp* ddp, const char** json);

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

/* Of this rank: in a whole epoch, and left in this one. */
ddprun_status ddprun_sampler_counts(const ddprun_sampler* sampler, int64_t* per_epoch,
                                    int64_t* remaining);

/* --- clip_grad_norm.h --- */

ddprun_status ddprun_clip_grad_norm(const ddprun_buffer* gradients, size_t count, double max_norm,
                                    double norm_type, int error_if_nonfinite, double* norm);

/* The same if each rank holds a part of the gradients. Collective. */
ddprun_status ddprun_clip_grad_norm_of_parts(ddprun_group* group, const ddprun_buffer* part,
                                             size_t count, double max_norm, double norm_type,
                                             int error_if_nonfinite, double* norm);

/* --- grad_scaler.h --- */

typedef struct {
  size_t size;
  double init_scale; /* 0: the default of C++, here and below. */
  double growth_factor;
  double backoff_factor;
  int32_t growth_interval;
  int32_t disabled; /* 1: GradScalerOptions::enabled is false. */
} ddprun_scaler_options;

/* `options` may be NULL. One thread at a time. */
ddprun_status ddprun_scaler_create(const ddprun_scaler_options* options, ddprun_scaler** scaler);
void ddprun_scaler_destroy(ddprun_scaler* scaler);
ddprun_status ddprun_scaler_scale(const ddprun_scaler* scaler, double* scale);
/* `group`: NULL, or the ranks that each hold a part of the gradients: collective. *finite, which
   may be NULL: 1 if all are finite. */
ddprun_status ddprun_scaler_unscale(ddprun_scaler* scaler, ddprun_group* group,
                                    const ddprun_buffer* gradients, size_t count, int* finite);
/* Instead of it, if the program has divided the gradients itself. */
ddprun_status ddprun_scaler_unscaled(ddprun_scaler* scaler, int finite);
int ddprun_scaler_may_step(const ddprun_scaler* scaler); /* 1 or 0. */
ddprun_status ddprun_scaler_update(ddprun_scaler* scaler);
/* GradScalerState: for checkpoints. */
ddprun_status ddprun_scaler_state(const ddprun_scaler* scaler, double* scale, int* growth_tracker);
ddprun_status ddprun_scaler_load(ddprun_scaler* scaler, double scale, int growth_tracker);

#ifdef __cplusplus
}
#endif

#endif
