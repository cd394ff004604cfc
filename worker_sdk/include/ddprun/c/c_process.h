#ifndef DDPRUN_C_PROCESS_H
#define DDPRUN_C_PROCESS_H
/* The process: crash reports, ranks without a launcher, seeds, metrics. crash_report.h, spawn.h,
   seeds.h, metrics.h document the C++ counterparts. Include ddprun/c_api.h. */

#include "ddprun/c/c_base.h"
#include "ddprun/c/c_group.h"

#ifdef __cplusplus
extern "C" {
#endif

void ddprun_install_crash_report(void);

/* The same, also where a signal has a handler, such as that of Python's faulthandler: it is called
   when the report is written. Not for handlers that let the program go on. */
void ddprun_install_crash_report_before(void);

/* Forks `ranks` processes, each of which calls body(rank, user) and exits with what it returns, or
   with 1 if of that the lowest eight bits, which are all that an exit code has, are 0. Returns
   DDPRUN_OK when body() has returned 0 on all ranks. Else ddprun_last_error_peer() is the rank that
   failed first, and *exit_code, which may be NULL, is its code: 128 + the signal that killed it.
   `grace_ms`: time between SIGTERM and SIGKILL for the others; 0: 5 s. DDPRUN_BAD_ARGUMENT if the
   process has other threads. */
typedef int (*ddprun_rank_body)(int rank, void* user);
ddprun_status ddprun_spawn(int ranks, ddprun_rank_body body, void* user, int64_t grace_ms,
                           int* exit_code);

/* A seed from the system's entropy on rank 0, the same on all ranks. Collective. */
ddprun_status ddprun_shared_seed(ddprun_group* group, uint64_t* seed);

/* expect_steps.h: this rank will make so many more steps, as the timer of ddprun_ddp or
   ddprun_timer counts them. To be called before the first of them. */
ddprun_status ddprun_expect_steps(ddprun_group* group, int64_t more);

/* Numbers for the log. One thread at a time. */
typedef struct ddprun_metrics ddprun_metrics;

typedef struct {
  size_t size;
  const char* name;
  double average; /* Weighted. */
  double sum;     /* Of value * weight. */
  double weight;  /* Sum of weights. */
  double min;     /* Of the values. */
  double max;
} ddprun_metric;

ddprun_status ddprun_metrics_create(ddprun_metrics** metrics);
void ddprun_metrics_destroy(ddprun_metrics* metrics);
/* `weight`: of how many samples `value` is the average. */
ddprun_status ddprun_metrics_add(ddprun_metrics* metrics, const char* name, double value,
                                 double weight);
/* Reduces the metrics of all ranks, and clears this rank's. *count is how many there are.
   Collective. */
ddprun_status ddprun_metrics_reduce(ddprun_metrics* metrics, ddprun_group* group, size_t* count);
/* Fills *metric, whose size the caller has set, with number `i` of them, in the order of names. Its
   name is valid until the next ddprun_metrics_reduce() of these metrics. */
ddprun_status ddprun_metrics_get(const ddprun_metrics* metrics, size_t i, ddprun_metric* metric);
/* The average of one number over all ranks. Collective. */
ddprun_status ddprun_average(ddprun_group* group, double value, double* average);

#ifdef __cplusplus
}
#endif

#endif
