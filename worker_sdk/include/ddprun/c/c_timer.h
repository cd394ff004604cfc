#ifndef DDPRUN_C_TIMER_H
#define DDPRUN_C_TIMER_H
/* The steps of a training loop that another library synchronises, for `ddprun --report`, --on-stall
   and the daemon's metrics. The program reports in which phase it is. Include ddprun/c_api.h. */

#include "ddprun/c/c_base.h"
#include "ddprun/c/c_group.h"

#ifdef __cplusplus
extern "C" {
#endif

/* One thread at a time may be in a call of a timer. */
typedef struct ddprun_timer ddprun_timer;

enum {
  DDPRUN_PHASE_OUTSIDE = 0, /* Between the others. */
  DDPRUN_PHASE_DATA = 1,
  DDPRUN_PHASE_FORWARD = 2,
  DDPRUN_PHASE_BACKWARD = 3,
  DDPRUN_PHASE_OPTIMIZER = 4,
  DDPRUN_PHASE_EXPOSED = 5 /* Waiting for other ranks. */
};
typedef int32_t ddprun_phase;

/* One for each process. Groups that are created later leave it to the timer to inform the agent of
   where the process is. */
ddprun_status ddprun_timer_create(ddprun_timer** timer);
/* Meets the timers of the other ranks; collective, at most once. From the next phase on, steps are
   timed, and their times are exchanged without holding up a rank. `options` may be NULL; its
   backend is ignored. */
ddprun_status ddprun_timer_join(ddprun_timer* timer, const ddprun_init_options* options);
/* Ends one phase and begins another. */
ddprun_status ddprun_timer_enter(ddprun_timer* timer, ddprun_phase phase);
/* `bytes`: of gradients, which the ranks have exchanged in this step. */
ddprun_status ddprun_timer_end_step(ddprun_timer* timer, size_t bytes);
/* Leaves the summary of the process for `ddprun --report`; takes some seconds at most. */
void ddprun_timer_destroy(ddprun_timer* timer);

#ifdef __cplusplus
}
#endif

#endif
