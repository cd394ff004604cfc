/* What the C interface has for training beside the plain case of c_api_test.c: options and passes of
   DistributedDataParallel, clipping of parts, loss scaling, the sampler's counts. One rank of a job
   that ddprun starts. */

#include <math.h>
#include <string.h>

#include "tests/support/c_check.h"

#define PARAMETERS 3

/* Three parameters of two elements, all of them `first`. */
static ddprun_ddp* make(ddprun_group* group, float values[PARAMETERS][2], float first,
                        const ddprun_ddp_options* options) {
  ddprun_parameter parameters[PARAMETERS];
  for (int i = 0; i < PARAMETERS; ++i) {
    values[i][0] = values[i][1] = first;
    const ddprun_parameter one = {
        .size = sizeof one, .data = values[i], .count = 2, .type = DDPRUN_F32};
    parameters[i] = one;
  }
  ddprun_ddp* ddp = NULL;
  CHECK(ddprun_ddp_create(group, parameters, PARAMETERS, options, &ddp) == DDPRUN_OK);
  return ddp;
}

/* A gradient of `value`, read back after the pass. */
static float* gradient(ddprun_ddp* ddp, size_t i) {
  ddprun_buffer found = {.size = sizeof found};
  CHECK(ddprun_ddp_gradient(ddp, i, &found) == DDPRUN_OK && found.count == 2);
  return found.data;
}

static void pass(ddprun_ddp* ddp, float value) {
  CHECK(ddprun_ddp_begin_backward(ddp, 1) == DDPRUN_OK);
  for (size_t i = PARAMETERS; i-- > 0;) {
    gradient(ddp, i)[0] = gradient(ddp, i)[1] = value;
    CHECK(ddprun_ddp_mark_ready(ddp, i) == DDPRUN_OK);
  }
  CHECK(ddprun_ddp_finish_backward(ddp) == DDPRUN_OK);
}

static void hooks(ddprun_group* group) {
  const int n = ddprun_world_size(group), rank = ddprun_rank(group);
  float values[PARAMETERS][2];
  const ddprun_power_sgd_options power = {.size = sizeof power, .rank = 1, .start_step = 1000};
  for (int32_t hook = DDPRUN_HOOK_ALL_REDUCE; hook <= DDPRUN_HOOK_POWER_SGD; ++hook) {
    const ddprun_ddp_options options = {
        .size = sizeof options, .hook = hook, .window = -1, .power_sgd = &power};
    ddprun_ddp* ddp = make(group, values, 1, &options);
    for (int step = 0; step < 3; ++step) {
      pass(ddp, (float)(1 + rank) / 4096 + 1); /* bf16 has no such number, fp16 none so near to 1. */
      const float exact = (float)(n + 1) / 2 / 4096 + 1, got = gradient(ddp, 1)[1];
      const int half = hook == DDPRUN_HOOK_FP16 || hook == DDPRUN_HOOK_BF16;
      if (hook == DDPRUN_HOOK_NOOP) CHECK(got == (float)(1 + rank) / 4096 + 1);
      if (half) CHECK(got != exact && fabs(got - exact) < 0.01);
      if (!half && hook != DDPRUN_HOOK_NOOP) CHECK(fabs(got - exact) < 1e-6);
    }
    ddprun_ddp_destroy(ddp);
  }
  ddprun_ddp_options wrong = {.size = sizeof wrong, .hook = DDPRUN_HOOK_POWER_SGD + 1};
  const ddprun_parameter one = {
      .size = sizeof one, .data = values, .count = 1, .type = DDPRUN_F32};
  ddprun_ddp* none = NULL;
  CHECK(ddprun_ddp_create(group, &one, 1, &wrong, &none) == DDPRUN_BAD_ARGUMENT && !none);
  CHECK(strstr(ddprun_last_error(), "there is no such hook"));
  wrong.hook = 0, wrong.window = -2;
  CHECK(ddprun_ddp_create(group, &one, 1, &wrong, &none) == DDPRUN_BAD_ARGUMENT);
}

static void starts(ddprun_group* group) {
  const int rank = ddprun_rank(group);
  float values[PARAMETERS][2], moved[2] = {7, 8};
  const ddprun_ddp_options keep = {.size = sizeof keep, .keep_at_start = 1};
  ddprun_ddp* ddp = make(group, values, (float)rank, &keep);
  CHECK(values[0][0] == (float)rank);
  const ddprun_buffer elsewhere = DDPRUN_BUFFER(moved, 2, DDPRUN_F32);
  CHECK(ddprun_ddp_set_value(ddp, 1, &elsewhere) == DDPRUN_OK);
  CHECK(ddprun_ddp_set_value(ddp, 99, &elsewhere) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_ddp_begin_forward(ddp) == DDPRUN_OK && ddprun_ddp_end_forward(ddp) == DDPRUN_OK);
  int moves = -1;
  pass(ddp, 1);
  CHECK(ddprun_ddp_rebuild(ddp, &moves) == DDPRUN_OK && (moves == 0 || moves == 1));
  ddprun_group* next = NULL;
  CHECK(ddprun_group_split(group, 0, -rank, &next) == DDPRUN_OK);
  CHECK(ddprun_ddp_reconfigure(ddp, next) == DDPRUN_OK);
  pass(ddp, (float)ddprun_rank(next));
  CHECK(gradient(ddp, 0)[0] == (float)(ddprun_world_size(next) - 1) / 2);
  ddprun_ddp_destroy(ddp);
  ddprun_group_destroy(next);
}

/* Parameter 0 is used by rank 0 alone, parameter 1 by nobody. */
static void unused(ddprun_group* group) {
  float values[PARAMETERS][2];
  const ddprun_ddp_options options = {.size = sizeof options, .find_unused = 1};
  ddprun_ddp* ddp = make(group, values, 1, &options);
  const size_t none[] = {1, 0};
  const size_t count = ddprun_rank(group) == 0 ? 1 : 2;
  CHECK(ddprun_ddp_begin_backward_without(ddp, 1, none, count) == DDPRUN_OK);
  CHECK(ddprun_ddp_mark_ready(ddp, 2) == DDPRUN_OK);
  if (count == 1) CHECK(ddprun_ddp_mark_ready(ddp, 0) == DDPRUN_OK);
  CHECK(ddprun_ddp_finish_backward(ddp) == DDPRUN_OK);
  for (size_t i = 0; i < PARAMETERS; ++i) {
    int used = -1;
    CHECK(ddprun_ddp_used(ddp, i, &used) == DDPRUN_OK && used == (i != 1));
  }
  const size_t beyond = PARAMETERS;
  CHECK(ddprun_ddp_begin_backward_without(ddp, 1, &beyond, 1) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_ddp_begin_backward_without(ddp, 1, NULL, 1) == DDPRUN_BAD_ARGUMENT);
  int used = -1;
  CHECK(ddprun_ddp_used(NULL, 0, &used) == DDPRUN_BAD_ARGUMENT);
  ddprun_ddp_destroy(ddp);
}

/* Rank r has r + 1 passes; those that have ended give zeros. */
static void uneven(ddprun_group* group) {
  const int n = ddprun_world_size(group), rank = ddprun_rank(group);
  float values[PARAMETERS][2];
  const ddprun_ddp_options options = {.size = sizeof options, .uneven_inputs = 1};
  ddprun_ddp* ddp = make(group, values, 1, &options);
  for (int step = 0; step <= rank; ++step) {
    pass(ddp, 1);
    CHECK(fabs(gradient(ddp, 2)[0] - (float)(n - step) / (float)n) < 1e-6);
    values[0][0] += 1;
  }
  CHECK(ddprun_ddp_join(ddp) == DDPRUN_OK);
  CHECK(values[0][0] == (float)(n + 1)); /* The last rank's. */
  ddprun_ddp_destroy(ddp);
}

static void scaling(ddprun_group* group) {
  const int n = ddprun_world_size(group), rank = ddprun_rank(group);
  const ddprun_scaler_options options = {.size = sizeof options, .init_scale = 8};
  ddprun_scaler* scaler = NULL;
  CHECK(ddprun_scaler_create(&options, &scaler) == DDPRUN_OK);
  double scale = 0;
  float part[] = {16, 32};
  const ddprun_buffer b = DDPRUN_BUFFER(part, 2, DDPRUN_F32);
  int finite = -1, tracker = -1;
  CHECK(ddprun_scaler_scale(scaler, &scale) == DDPRUN_OK && scale == 8);
  CHECK(ddprun_scaler_unscale(scaler, NULL, &b, 1, &finite) == DDPRUN_OK && finite == 1);
  CHECK(part[0] == 2 && part[1] == 4 && ddprun_scaler_may_step(scaler) == 1);
  CHECK(ddprun_scaler_update(scaler) == DDPRUN_OK);
  CHECK(ddprun_scaler_state(scaler, &scale, &tracker) == DDPRUN_OK && tracker == 1);
  part[0] = rank == n - 1 ? INFINITY : 8; /* An overflow of one rank is that of all. */
  CHECK(ddprun_scaler_unscale(scaler, group, &b, 1, &finite) == DDPRUN_OK && finite == 0);
  CHECK(ddprun_scaler_may_step(scaler) == 0 && ddprun_scaler_update(scaler) == DDPRUN_OK);
  CHECK(ddprun_scaler_scale(scaler, &scale) == DDPRUN_OK && scale == 4);
  CHECK(ddprun_scaler_update(scaler) == DDPRUN_BAD_ARGUMENT); /* Nothing was unscaled. */
  CHECK(ddprun_scaler_unscaled(scaler, 1) == DDPRUN_OK);
  CHECK(ddprun_scaler_update(scaler) == DDPRUN_OK);
  CHECK(ddprun_scaler_load(scaler, 32, 5) == DDPRUN_OK);
  CHECK(ddprun_scaler_scale(scaler, &scale) == DDPRUN_OK && scale == 32);
  CHECK(ddprun_scaler_load(scaler, -1, 5) == DDPRUN_BAD_ARGUMENT);
  const ddprun_buffer none = DDPRUN_BUFFER(NULL, 2, DDPRUN_F32);
  CHECK(ddprun_scaler_unscale(scaler, NULL, &none, 1, &finite) == DDPRUN_BAD_ARGUMENT);
  CHECK(strstr(ddprun_last_error(), "GradScaler") != NULL);
  ddprun_scaler_destroy(scaler);
  ddprun_scaler_destroy(NULL);
  CHECK(ddprun_scaler_may_step(NULL) == -1);
  const ddprun_scaler_options off = {.size = sizeof off, .disabled = 1};
  CHECK(ddprun_scaler_create(&off, &scaler) == DDPRUN_OK);
  CHECK(ddprun_scaler_scale(scaler, &scale) == DDPRUN_OK && scale == 1);
  ddprun_scaler_destroy(scaler);

  double norm = 0;
  part[0] = 3, part[1] = 0; /* Of all ranks together: 3 * sqrt(n). */
  CHECK(ddprun_clip_grad_norm_of_parts(group, &b, 1, 1, 2, 1, &norm) == DDPRUN_OK);
  CHECK(ddprun_clip_grad_norm(&none, 1, 1, 2, 0, &norm) == DDPRUN_BAD_ARGUMENT);
  CHECK(strstr(ddprun_last_error(), "clip_grad_norm") != NULL);
  CHECK(fabs(norm - 3 * sqrt(n)) < 1e-5 && fabs(part[0] - 1 / sqrt(n)) < 1e-5);
}

static void counts(void) {
  const ddprun_sampler_options options = {
      .size = sizeof options, .length = 10, .world_size = 2, .rank = 1};
  ddprun_sampler* sampler = NULL;
  int64_t all = 0, left = 0;
  CHECK(ddprun_sampler_create(&options, &sampler) == DDPRUN_OK);
  CHECK(ddprun_sampler_advance(sampler, 2) == DDPRUN_OK);
  CHECK(ddprun_sampler_counts(sampler, &all, &left) == DDPRUN_OK && all == 5 && left == 3);
  CHECK(ddprun_sampler_counts(NULL, &all, &left) == DDPRUN_BAD_ARGUMENT);
  ddprun_sampler_destroy(sampler);
}

int main(void) {
  ddprun_group* group = NULL;
  CHECK(ddprun_group_init(NULL, &group) == DDPRUN_OK);
  hooks(group);
  starts(group);
  unused(group);
  uneven(group);
  scaling(group);
  counts();
  CHECK(ddprun_barrier(group, 0) == DDPRUN_OK);
  printf("C training: rank %d of %d: right\n", ddprun_rank(group), ddprun_world_size(group));
  ddprun_group_destroy(group);
  return 0;
}
