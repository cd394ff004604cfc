/* ddprun/c_api.h, used by a C compiler as a C program would: one rank of a job that ddprun starts.
   Says what is wrong and exits with 1. */

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/c_check.h"

static void collectives(ddprun_group* group) {
  const int n = ddprun_world_size(group), rank = ddprun_rank(group);
  float value = 1.0f + (float)rank;
  ddprun_buffer b = DDPRUN_BUFFER(&value, 1, DDPRUN_F32);
  CHECK(ddprun_all_reduce(group, &b, DDPRUN_SUM, 0) == DDPRUN_OK);
  CHECK(value == (float)(n * (n + 1) / 2));
  ddprun_work* work = NULL;
  CHECK(ddprun_all_reduce_async(group, &b, DDPRUN_MAX, 60000, &work) == DDPRUN_OK);
  CHECK(ddprun_work_wait(work) == DDPRUN_OK);
  CHECK(ddprun_work_done(work));
  ddprun_work_destroy(work);

  int64_t* all = calloc((size_t)n, sizeof *all);
  int64_t mine = 10 * rank;
  const ddprun_buffer in = DDPRUN_BUFFER(&mine, 1, DDPRUN_I64),
                      out = DDPRUN_BUFFER(all, (size_t)n, DDPRUN_I64);
  CHECK(ddprun_all_gather(group, &in, &out, 0) == DDPRUN_OK);
  for (int r = 0; r < n; ++r) CHECK(all[r] == 10 * r);
  CHECK(ddprun_all_to_all(group, &out, &out, 0) == DDPRUN_OK);
  for (int r = 0; r < n; ++r) CHECK(all[r] == 10 * rank);
  CHECK(ddprun_broadcast(group, &in, n - 1, 0) == DDPRUN_OK);
  CHECK(mine == 10 * (n - 1));
  CHECK(ddprun_gather(group, &in, &out, 0, 0) == DDPRUN_OK);
  CHECK(ddprun_scatter(group, &out, &in, 0, 0) == DDPRUN_OK);
  CHECK(mine == 10 * (n - 1));
  CHECK(ddprun_reduce_scatter(group, &out, &in, DDPRUN_MIN, 0) == DDPRUN_OK);
  int64_t total = -1;
  mine = rank + 1;
  const ddprun_buffer sum = DDPRUN_BUFFER(&total, 1, DDPRUN_I64);
  CHECK(ddprun_reduce(group, &in, &sum, DDPRUN_SUM, n - 1, 0) == DDPRUN_OK);
  CHECK(total == (rank == n - 1 ? n * (n + 1) / 2 : -1) && mine == rank + 1);
  if (n > 1 && rank < 2) {
    const int peer = 1 - rank;
    CHECK((rank == 0 ? ddprun_send(group, &in, peer, 0) : ddprun_recv(group, &in, peer, 0)) ==
          DDPRUN_OK);
  }
  CHECK(ddprun_barrier(group, 0) == DDPRUN_OK);
  CHECK(ddprun_barrier(group, INT64_MAX) == DDPRUN_OK);
  free(all);
}

/* A world of one, whose host has a name of its own, and which has no use for a GPU. */
static void options(void) {
  char folder[] = "/tmp/ddprun_test_XXXXXX", path[64], method[80];
  CHECK(mkdtemp(folder));
  snprintf(path, sizeof path, "%s/store", folder);
  snprintf(method, sizeof method, "file://%s", path);
  const ddprun_init_options options = {.size = sizeof options,
                                       .init_method = method,
                                       .world_size = 1,
                                       .host = "a-host-of-its-own",
                                       .device_given = 1,
                                       .device = 99,
                                       .max_ctas = 4,
                                       .may_shrink = 1};
  ddprun_group* alone = NULL;
  unsetenv("DDPRUN_HOST"); /* It would override the option. */
  CHECK(ddprun_group_init(&options, &alone) == DDPRUN_OK);
  CHECK(strcmp(ddprun_host_of(alone, 0), options.host) == 0 && ddprun_device(alone) == -1);
  ddprun_group_destroy(alone);
  unlink(path);
  CHECK(rmdir(folder) == 0);
}

static void split(ddprun_group* group) {
  ddprun_group* part = NULL;
  CHECK(ddprun_group_split(group, ddprun_rank(group) == 0 ? 0 : -1, 0, &part) == DDPRUN_OK);
  CHECK((part != NULL) == (ddprun_rank(group) == 0));
  if (part) CHECK(ddprun_world_size(part) == 1);
  ddprun_group_destroy(part);
}

static void train(ddprun_group* group) {
  const int n = ddprun_world_size(group), rank = ddprun_rank(group);
  float a[6] = {0}, b[2] = {(float)rank, 7};
  const int64_t shape[] = {2, 3};
  ddprun_parameter parameters[] = {
      {sizeof(ddprun_parameter), "a", a, 6, shape, 2, DDPRUN_F32, 0},
      {.size = sizeof(ddprun_parameter), .data = b, .count = 2, .type = DDPRUN_F32}};
  const ddprun_ddp_options options = {
      .size = sizeof options, .first_bucket_bytes = 8, .bucket_bytes = 8};
  ddprun_ddp* ddp = NULL;
  CHECK(ddprun_ddp_create(group, parameters, 2, &options, &ddp) == DDPRUN_OK);
  CHECK(b[0] == 0); /* Rank 0's. */
  for (int step = 0; step < 4; ++step) {
    const int synchronise = step % 2; /* Every second pass adds up only. */
    CHECK(ddprun_ddp_begin_backward(ddp, synchronise) == DDPRUN_OK);
    for (size_t i = 2; i-- > 0;) {
      ddprun_buffer gradient = {.size = sizeof gradient};
      CHECK(ddprun_ddp_gradient(ddp, i, &gradient) == DDPRUN_OK);
      for (size_t k = 0; k < gradient.count; ++k) ((float*)gradient.data)[k] += (float)rank;
      CHECK(ddprun_ddp_mark_ready(ddp, i) == DDPRUN_OK);
    }
    CHECK(ddprun_ddp_finish_backward(ddp) == DDPRUN_OK);
    ddprun_buffer gradient = {.size = sizeof gradient};
    CHECK(ddprun_ddp_gradient(ddp, 0, &gradient) == DDPRUN_OK);
    if (!synchronise) continue;
    CHECK(fabs(((float*)gradient.data)[5] - (n - 1)) < 1e-6); /* 2 * the average rank. */
    double norm = 0;
    CHECK(ddprun_clip_grad_norm(&gradient, 1, 0.5, 2, 1, &norm) == DDPRUN_OK);
    CHECK(fabs(norm - sqrt(6.0) * (n - 1)) < 1e-5);
    CHECK(ddprun_ddp_zero_gradients(ddp) == DDPRUN_OK);
  }
  /* A pass that the last rank cannot end. */
  CHECK(ddprun_ddp_begin_backward(ddp, 1) == DDPRUN_OK);
  for (size_t i = 2; rank < n - 1 && i-- > 0;) {
    CHECK(ddprun_ddp_mark_ready(ddp, i) == DDPRUN_OK);
  }
  CHECK((rank < n - 1 ? ddprun_ddp_finish_backward(ddp) : ddprun_ddp_cancel_backward(ddp)) ==
        DDPRUN_OK);
  CHECK(ddprun_barrier(group, 0) == DDPRUN_OK);
  int64_t comm = -1, exposed = -1;
  CHECK(ddprun_ddp_last_step(ddp, &comm, &exposed) == DDPRUN_OK);
  CHECK(comm >= 0 && exposed >= 0);
  CHECK(ddprun_ddp_mark_ready(ddp, 99) == DDPRUN_BAD_ARGUMENT);
  ddprun_buffer newer = {.size = sizeof newer + 8};
  CHECK(ddprun_ddp_gradient(ddp, 0, &newer) == DDPRUN_BAD_ARGUMENT && !newer.data);
  ddprun_ddp* other = ddp;
  parameters[1].size += 8; /* Of the second only. */
  CHECK(ddprun_ddp_create(group, parameters, 2, NULL, &other) == DDPRUN_BAD_ARGUMENT && !other);
  CHECK(ddprun_ddp_create(group, NULL, 2, NULL, &other) == DDPRUN_BAD_ARGUMENT);
  ddprun_ddp_destroy(ddp);
}

/* What was created from a group works on after the group's handle has gone. */
static void outlive(ddprun_group* group) {
  const int n = ddprun_world_size(group);
  ddprun_group* part = NULL;
  CHECK(ddprun_group_split(group, 0, 0, &part) == DDPRUN_OK);
  float value = 1, sum = 1;
  const ddprun_parameter parameter = {
      .size = sizeof parameter, .data = &value, .count = 1, .type = DDPRUN_F32};
  const ddprun_buffer b = DDPRUN_BUFFER(&sum, 1, DDPRUN_F32);
  ddprun_ddp* ddp = NULL;
  ddprun_work* work = NULL;
  CHECK(ddprun_ddp_create(part, &parameter, 1, NULL, &ddp) == DDPRUN_OK);
  CHECK(ddprun_all_reduce_async(part, &b, DDPRUN_SUM, 0, &work) == DDPRUN_OK);
  ddprun_group_destroy(part);
  CHECK(ddprun_work_wait(work) == DDPRUN_OK && sum == (float)n);
  CHECK(ddprun_ddp_begin_backward(ddp, 1) == DDPRUN_OK);
  CHECK(ddprun_ddp_mark_ready(ddp, 0) == DDPRUN_OK);
  CHECK(ddprun_ddp_finish_backward(ddp) == DDPRUN_OK);
  ddprun_ddp_destroy(ddp);
  ddprun_work_destroy(work);
}

static void sample(void) {
  ddprun_sampler_options options = {
      .size = sizeof options, .length = 10, .seed = 42, .world_size = 2, .rank = 1, .shuffle = 1};
  ddprun_sampler* sampler = NULL;
  CHECK(ddprun_sampler_create(&options, &sampler) == DDPRUN_OK);
  CHECK(ddprun_sampler_set_epoch(sampler, 3) == DDPRUN_OK);
  CHECK(ddprun_sampler_advance(sampler, 2) == DDPRUN_OK);
  const int64_t* indices = NULL;
  size_t count = 0;
  CHECK(ddprun_sampler_indices(sampler, &indices, &count) == DDPRUN_OK);
  CHECK(count == 3 && indices[0] >= 0 && indices[0] < 10);
  int64_t epoch = 0, consumed = 0;
  CHECK(ddprun_sampler_state(sampler, &epoch, &consumed) == DDPRUN_OK);
  CHECK(epoch == 3 && consumed == 4);
  CHECK(ddprun_sampler_load(sampler, 0, 0) == DDPRUN_OK);
  CHECK(ddprun_sampler_load(sampler, -1, 0) == DDPRUN_BAD_ARGUMENT);
  ddprun_sampler_destroy(sampler);
  options.rank = 2;
  CHECK(ddprun_sampler_create(&options, &sampler) == DDPRUN_BAD_ARGUMENT);
  CHECK(strstr(ddprun_last_error(), "rank 2 is not within 0 .. 1") && !sampler);
  options.size = sizeof options - 8; /* Of no version. */
  CHECK(ddprun_sampler_create(&options, &sampler) == DDPRUN_BAD_ARGUMENT);
  options.size = sizeof options + 8; /* A newer program's. */
  CHECK(ddprun_sampler_create(&options, &sampler) == DDPRUN_BAD_ARGUMENT);
}

/* No function reads through a null handle or pointer. */
static void nulls(void) {
  CHECK(ddprun_rank(NULL) == -1 && ddprun_world_size(NULL) == -1);
  CHECK(strstr(ddprun_last_error(), "the handle is null"));
  CHECK(ddprun_local_rank(NULL) == -1 && ddprun_restart_count(NULL) == -1);
  CHECK(strcmp(ddprun_backend(NULL), "") == 0);
  CHECK(ddprun_work_done(NULL) == -1 && ddprun_work_wait(NULL) == DDPRUN_BAD_ARGUMENT);
  int64_t number = 0;
  CHECK(ddprun_sampler_state(NULL, &number, &number) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_ddp_last_step(NULL, &number, NULL) == DDPRUN_BAD_ARGUMENT);
  double norm = 0;
  CHECK(ddprun_clip_grad_norm(NULL, 1, 1, 2, 0, &norm) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_clip_grad_norm(NULL, 0, 1, 2, 0, &norm) == DDPRUN_OK);
  ddprun_group_abort(NULL);
  ddprun_group_destroy(NULL);
  ddprun_ddp_destroy(NULL);
  ddprun_sampler_destroy(NULL);
  ddprun_work_destroy(NULL);
}

static void misuse(ddprun_group* group) {
  float value = 0;
  ddprun_buffer b = DDPRUN_BUFFER(&value, 1, (ddprun_type)77);
  CHECK(ddprun_all_reduce(group, &b, DDPRUN_SUM, 0) == DDPRUN_BAD_ARGUMENT);
  b.type = DDPRUN_F32;
  CHECK(ddprun_all_reduce(group, &b, (ddprun_op)9, 0) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_all_reduce(NULL, &b, DDPRUN_SUM, 0) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_broadcast(group, &b, 1000, 0) == DDPRUN_BAD_ARGUMENT);
  CHECK(strstr(ddprun_last_error(), "there is no rank 1000"));
  CHECK(ddprun_last_error_peer() == -1);
  ddprun_init_options options = {
      .size = sizeof options, .init_method = "nonsense://", .world_size = 1};
  ddprun_group* other = group;
  CHECK(ddprun_group_init(&options, &other) == DDPRUN_BAD_ARGUMENT);
  CHECK(other == NULL);
  options.world_size = 0, options.rank = 2;
  CHECK(ddprun_group_init(&options, &other) == DDPRUN_BAD_ARGUMENT);
  CHECK(strstr(ddprun_last_error(), "no world_size"));
  options.world_size = -3;
  CHECK(ddprun_group_init(&options, &other) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_all_reduce(group, NULL, DDPRUN_SUM, 0) == DDPRUN_BAD_ARGUMENT);
  b.reserved = 1;
  CHECK(ddprun_all_reduce(group, &b, DDPRUN_SUM, 0) == DDPRUN_BAD_ARGUMENT);
  b.reserved = 0;
  b.size = 24; /* As if it did not begin with its size. */
  CHECK(ddprun_all_reduce(group, &b, DDPRUN_SUM, 0) == DDPRUN_BAD_ARGUMENT);
  CHECK(strstr(ddprun_last_error(), "does not support this size"));
}

int main(void) {
  CHECK(ddprun_c_api_version() == DDPRUN_C_API_VERSION && strchr(ddprun_version(), '.'));
  ddprun_group* group = NULL;
  CHECK(ddprun_group_init(NULL, &group) == DDPRUN_OK);
  collectives(group);
  options();
  split(group);
  train(group);
  outlive(group);
  sample();
  nulls();
  misuse(group);
  ddprun_group_abort(group);
  CHECK(ddprun_barrier(group, 0) == DDPRUN_ABORTED);
  printf("C: rank %d of %d on %s: right\n", ddprun_rank(group), ddprun_world_size(group),
         ddprun_backend(group));
  ddprun_group_destroy(group);
  return 0;
}
