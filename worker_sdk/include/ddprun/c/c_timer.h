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

/* One per process. From then on the timer, not groups created later, reports to the agent where the
   process is. */
ddprun_status ddprun_timer_create(ddprun_timer** timer);
/* Connects with the timers of the other ranks; collective, at most once. From the next phase on,
   steps are timed, and their times are exchanged without holding up a rank. `options` may be NULL;
   its backend is ignored. */
ddprun_status ddprun_timer_join(ddprun_timer* timer, const ddprun_init_options* options);
/* From the next phase on, times are those of a GPU, as CUDA's events report them: a phase begins
   when `stream` (a cudaStream_t; NULL: the default stream) of `device` comes to it. Phases have to
   be entered with all of the phase before put into the stream, and none of the next. No call waits
   for the GPU: a step is counted once the GPU has done it, and left out if 128 later ones have
   ended by then. Call it again for another stream. DDPRUN_UNSUPPORTED where there is no CUDA or no
   GPU; then times stay the host's. */
ddprun_status ddprun_timer_use_stream(ddprun_timer* timer, int32_t device, void* stream);
/* Ends one phase and begins another. */
ddprun_status ddprun_timer_enter(ddprun_timer* timer, ddprun_phase phase);
/* `bytes`: of gradients, which the ranks have exchanged in this step. */
ddprun_status ddprun_timer_end_step(ddprun_timer* timer, size_t bytes);
/* For the ledger: training stood still for `stall_ns`, for a checkpoint. */
ddprun_status ddprun_timer_checkpoint(ddprun_timer* timer, int64_t stall_ns);
/* For the ledger: what this rank had computed `ago_ns` before this call is safe from now on, so no
   failure undoes it. This and ddprun_timer_checkpoint() may be called from any thread, also while
   another one is in a call of the timer. */
ddprun_status ddprun_timer_saved(ddprun_timer* timer, int64_t ago_ns);
/* Writes the summary of the process for `ddprun --report`; takes a few seconds at most. */
void ddprun_timer_destroy(ddprun_timer* timer);

#ifdef __cplusplus
}
#endif

#endif
