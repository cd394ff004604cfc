/* ddprun_submit() and its works, groups over a store of the program's, and what is refused, as a C
   program has them: one rank of a job that ddprun starts. */

#include <complex.h>
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/support/c_check.h"

#define BUFFERS_MAX 8

static ddprun_buffer array(void* data, size_t count, ddprun_type type) {
  const ddprun_buffer b = DDPRUN_BUFFER(data, count, type);
  return b;
}

static ddprun_call call_of(int32_t operation) {
  ddprun_call call = {.size = sizeof call, .operation = operation, .tag = -1, .factor = 1};
  return call;
}

static ddprun_status blocking(ddprun_group* group, ddprun_call call, const ddprun_buffer* in,
                              size_t ins, const ddprun_buffer* out, size_t outs) {
  call.in = in, call.ins = ins, call.out = out, call.outs = outs;
  return ddprun_submit(group, &call, NULL);
}

/* The same, by a work. */
static ddprun_status awaited(ddprun_group* group, ddprun_call call, const ddprun_buffer* in,
                             size_t ins, const ddprun_buffer* out, size_t outs) {
  ddprun_work* work = NULL;
  call.in = in, call.ins = ins, call.out = out, call.outs = outs;
  const ddprun_status submitted = ddprun_submit(group, &call, &work);
  if (submitted != DDPRUN_OK) return submitted;
  const ddprun_status status = ddprun_work_wait(work);
  ddprun_work_destroy(work);
  return status;
}

typedef ddprun_status (*form)(ddprun_group*, ddprun_call, const ddprun_buffer*, size_t,
                              const ddprun_buffer*, size_t);

static void reductions(ddprun_group* group, form run) {
  const int n = ddprun_world_size(group), rank = ddprun_rank(group);
  ddprun_call call = call_of(DDPRUN_REDUCE);
  int16_t one = (int16_t)(rank + 1), all = -1;
  ddprun_buffer in = array(&one, 1, DDPRUN_I16), out = array(&all, 1, DDPRUN_I16);
  call.root = n - 1;
  CHECK(run(group, call, &in, 1, &out, 1) == DDPRUN_OK);
  CHECK(one == rank + 1 && all == (rank == n - 1 ? n * (n + 1) / 2 : -1));

  call = call_of(DDPRUN_ALL_REDUCE);
  unsigned char flag = rank == 0 ? 7 : 0; /* 7 is as true as 1. */
  out = array(&flag, 1, DDPRUN_BOOL);
  CHECK(run(group, call, NULL, 0, &out, 1) == DDPRUN_OK && (flag == 1 || n == 1));
  flag = rank == 0;
  call.op = DDPRUN_BAND;
  CHECK(run(group, call, NULL, 0, &out, 1) == DDPRUN_OK && flag == (n == 1));
  uint64_t bits = (uint64_t)1 << (60 + rank);
  out = array(&bits, 1, DDPRUN_U64);
  call.op = DDPRUN_BOR;
  CHECK(run(group, call, NULL, 0, &out, 1) == DDPRUN_OK);
  CHECK(bits == (((uint64_t)1 << n) - 1) << 60);
  double complex z[2] = {1 + 2 * I, rank};
  out = array(z, 2, DDPRUN_C128);
  call.op = DDPRUN_AVG;
  CHECK(run(group, call, NULL, 0, &out, 1) == DDPRUN_OK && z[0] == 1 + 2 * I);
  call.op = DDPRUN_MAX;
  CHECK(run(group, call, NULL, 0, &out, 1) == DDPRUN_BAD_ARGUMENT);
  CHECK(strstr(ddprun_last_error(), "max of c128 is not defined"));

  float part[BUFFERS_MAX], mine = 0;
  for (int i = 0; i < n; ++i) part[i] = 1;
  call = call_of(DDPRUN_REDUCE_SCATTER);
  call.op = DDPRUN_PREMUL_SUM;
  call.factor = rank + 1;
  in = array(part, (size_t)n, DDPRUN_F32), out = array(&mine, 1, DDPRUN_F32);
  CHECK(run(group, call, &in, 1, &out, 1) == DDPRUN_OK);
  CHECK(mine == (float)(n * (n + 1) / 2) && part[0] == 1);
}

/* Rank r has r + 1 elements for everybody; in an all_to_all, r + 2 * to. */
static void unequal_parts(ddprun_group* group, form run) {
  const int n = ddprun_world_size(group), rank = ddprun_rank(group);
  int32_t mine[BUFFERS_MAX], all[BUFFERS_MAX][2 * BUFFERS_MAX], sum[BUFFERS_MAX];
  ddprun_buffer parts[BUFFERS_MAX], sent[BUFFERS_MAX];
  for (int i = 0; i < BUFFERS_MAX; ++i) mine[i] = 100 * rank + i;
  for (int r = 0; r < n; ++r) parts[r] = array(all[r], (size_t)r + 1, DDPRUN_I32);
  const ddprun_buffer one = array(mine, (size_t)rank + 1, DDPRUN_I32);
  CHECK(run(group, call_of(DDPRUN_ALL_GATHER), &one, 1, parts, (size_t)n) == DDPRUN_OK);
  for (int r = 0; r < n; ++r) CHECK(all[r][0] == 100 * r && all[r][r] == 100 * r + r);

  const ddprun_buffer out = array(sum, (size_t)rank + 1, DDPRUN_I32);
  CHECK(run(group, call_of(DDPRUN_REDUCE_SCATTER), parts, (size_t)n, &out, 1) == DDPRUN_OK);
  for (int i = 0; i <= rank; ++i) CHECK(sum[i] == n * (100 * rank + i));

  int32_t from[BUFFERS_MAX][2 * BUFFERS_MAX];
  for (int r = 0; r < n; ++r) {
    from[r][0] = 1000 * rank + r;
    sent[r] = array(from[r], (size_t)(rank + 2 * r), DDPRUN_I32);
    parts[r] = array(all[r], (size_t)(r + 2 * rank), DDPRUN_I32);
  }
  CHECK(run(group, call_of(DDPRUN_ALL_TO_ALL), sent, (size_t)n, parts, (size_t)n) == DDPRUN_OK);
  for (int r = 0; r < n; ++r) CHECK(r + 2 * rank == 0 || all[r][0] == 1000 * r + rank);

  /* Gather and scatter of arrays that lie apart. */
  for (int r = 0; r < n; ++r) parts[r] = array(all[n - 1 - r], 2, DDPRUN_I32);
  const ddprun_buffer two = array(mine, 2, DDPRUN_I32);
  CHECK(run(group, call_of(DDPRUN_GATHER), &two, 1, rank ? NULL : parts, rank ? 0 : (size_t)n) ==
        DDPRUN_OK);
  for (int r = 0; rank == 0 && r < n; ++r) CHECK(all[n - 1 - r][1] == 100 * r + 1);
  CHECK(run(group, call_of(DDPRUN_SCATTER), rank ? NULL : parts, rank ? 0 : (size_t)n, &two, 1) ==
        DDPRUN_OK);
  CHECK(mine[1] == 100 * rank + 1);
}

/* Receives before sends, of several tags and sizes, on both sides. */
static void messages(ddprun_group* group) {
  const int n = ddprun_world_size(group), rank = ddprun_rank(group);
  if (n == 1) return;
  const int next = (rank + 1) % n, before = (rank + n - 1) % n;
  enum { kTags = 3 };
  int64_t got[kTags] = {0}, given[kTags];
  ddprun_work *receives[kTags], *sends[kTags];
  for (int tag = 0; tag < kTags; ++tag) {
    const ddprun_buffer out = array(&got[tag], 1, DDPRUN_I64);
    ddprun_call call = call_of(DDPRUN_RECV);
    call.out = &out, call.outs = 1, call.root = before, call.tag = tag;
    CHECK(ddprun_submit(group, &call, &receives[tag]) == DDPRUN_OK);
  }
  int done = 1; /* Nobody sends before this rank is at the barrier. */
  CHECK(ddprun_work_wait_for(receives[0], 1, &done) == DDPRUN_OK && !done);
  CHECK(ddprun_barrier(group, 0) == DDPRUN_OK); /* A collective waits for no message. */
  for (int tag = kTags; tag-- > 0;) {
    given[tag] = 10 * rank + tag;
    const ddprun_buffer in = array(&given[tag], 1, DDPRUN_I64);
    ddprun_call call = call_of(DDPRUN_SEND);
    call.in = &in, call.ins = 1, call.root = next, call.tag = tag;
    CHECK(ddprun_submit(group, &call, &sends[tag]) == DDPRUN_OK);
  }
  for (int tag = 0; tag < kTags; ++tag) {
    CHECK(ddprun_work_wait(receives[tag]) == DDPRUN_OK && got[tag] == 10 * before + tag);
    CHECK(ddprun_work_wait(sends[tag]) == DDPRUN_OK);
    ddprun_work_destroy(receives[tag]);
    ddprun_work_destroy(sends[tag]);
  }
  /* One that nobody answers ends by its limit, names whom it waited for, and leaves the group. */
  const ddprun_buffer out = array(&got[0], 1, DDPRUN_I64);
  ddprun_call call = call_of(DDPRUN_RECV);
  call.out = &out, call.outs = 1, call.root = before, call.tag = 0, call.timeout_ms = 50;
  CHECK(ddprun_submit(group, &call, NULL) == DDPRUN_TIMED_OUT);
  CHECK(ddprun_last_error_peer() == before);
  CHECK(ddprun_barrier(group, 0) == DDPRUN_OK);
}

static void completions(ddprun_group* group) {
  int fd = -1;
  CHECK(ddprun_group_completion_fd(group, &fd) == DDPRUN_OK && fd >= 0);
  float value = 1;
  const ddprun_buffer out = array(&value, 1, DDPRUN_F32);
  ddprun_call call = call_of(DDPRUN_ALL_REDUCE);
  call.out = &out, call.outs = 1;
  ddprun_work* work = NULL;
  CHECK(ddprun_submit(group, &call, &work) == DDPRUN_OK);
  struct pollfd entry = {.fd = fd, .events = POLLIN};
  CHECK(poll(&entry, 1, 60000) == 1);
  uint64_t ended = 0;
  CHECK(read(fd, &ended, sizeof ended) == sizeof ended && ended == 1);
  CHECK(ddprun_work_done(work) == 1 && ddprun_work_synchronize(work) == DDPRUN_OK);
  int64_t started = 0, took = 0;
  CHECK(ddprun_work_times(work, &started, &took) == DDPRUN_OK && started > 0 && took > 0);
  ddprun_error_info info = {.size = sizeof info, .status = 77};
  CHECK(ddprun_work_error(work, &info) == DDPRUN_OK && info.status == DDPRUN_OK);
  ddprun_work_destroy(work);
}

static void memory(ddprun_group* group) {
  const size_t count = 1 << 18;
  void* data = NULL;
  ddprun_memory* owner = NULL;
  CHECK(ddprun_allocate(group, count * sizeof(float), &data, &owner) == DDPRUN_OK);
  float* values = data;
  values[count - 1] = 1;
  const ddprun_buffer out = array(values, count, DDPRUN_F32);
  CHECK(blocking(group, call_of(DDPRUN_ALL_REDUCE), NULL, 0, &out, 1) == DDPRUN_OK);
  CHECK(values[count - 1] == (float)ddprun_world_size(group) && values[0] == 0);
  ddprun_call call = call_of(DDPRUN_REDUCE);
  CHECK(blocking(group, call, &out, 1, &out, 1) == DDPRUN_OK);
  ddprun_memory_destroy(owner);
}

/* A store of the program's, which is the job's in the clothes of callbacks. */
static int store_set(void* user, const char* key, const void* value, size_t bytes) {
  return ddprun_store_set(user, key, value, bytes);
}
static int store_get(void* user, const char* key, const void** value, size_t* bytes) {
  int exist = 0;
  *value = NULL;
  const int status = ddprun_store_check(user, &key, 1, &exist);
  return status != DDPRUN_OK || !exist ? status : ddprun_store_get(user, key, 60000, value, bytes);
}
static int store_add(void* user, const char* key, int64_t delta, int64_t* sum) {
  return ddprun_store_add(user, key, delta, sum);
}
static int store_fails(void* user, const char* key, int64_t delta, int64_t* sum) {
  (void)user, (void)key, (void)delta, (void)sum;
  return 3;
}

/* Rank 1 sends more than rank 0 awaits: both know it, and blame each other. */
static void mismatch(ddprun_group* group) {
  const int n = ddprun_world_size(group), rank = ddprun_rank(group);
  int32_t data[2][2 * BUFFERS_MAX];
  ddprun_buffer in[BUFFERS_MAX], out[BUFFERS_MAX];
  for (int r = 0; r < n; ++r) {
    in[r] = array(&data[0][2 * r], 1 + (rank == 1 && r == 0), DDPRUN_I32);
    out[r] = array(&data[1][2 * r], 1, DDPRUN_I32);
  }
  const ddprun_status status =
      blocking(group, call_of(DDPRUN_ALL_TO_ALL), in, (size_t)n, out, (size_t)n);
  if (n == 1) return;
  CHECK(status != DDPRUN_OK);
  if (rank != 0) return;
  CHECK(status == DDPRUN_MISMATCH && ddprun_last_error_peer() == 1);
  CHECK(strstr(ddprun_last_error(), "sends 2 elements to this rank, which expects 1"));
}

/* The ranks but the first, in their order turned round. */
static void part_of_the_job(ddprun_group* job, const char* backend) {
  const int n = ddprun_world_size(job), rank = ddprun_rank(job);
  if (rank == 0 || n < 2) return;
  int32_t ranks[BUFFERS_MAX];
  for (int r = 0; r < n - 1; ++r) ranks[r] = n - 1 - r;
  ddprun_store_calls calls = {sizeof calls, job, store_set, store_get, store_add, NULL};
  ddprun_create_options options = {.size = sizeof options,
                                   .prefix = backend,
                                   .backend = backend,
                                   .job_ranks = ranks,
                                   .rank = n - 1 - rank,
                                   .world_size = n - 1};
  ddprun_group* group = NULL;
  CHECK(ddprun_group_create(&calls, &options, &group) == DDPRUN_OK);
  CHECK(ddprun_world_size(group) == n - 1 && ddprun_rank(group) == n - 1 - rank);
  CHECK(n == 2 || strcmp(ddprun_backend(group), backend) == 0);
  CHECK(strlen(ddprun_host_of(group, 0)) > 0 && ddprun_device(group) == -1);
  unequal_parts(group, blocking);
  unequal_parts(group, awaited);
  reductions(group, awaited);
  messages(group);
  ddprun_group* smaller = NULL;
  CHECK(ddprun_group_split(group, 0, 0, &smaller) == DDPRUN_OK);
  CHECK(ddprun_barrier(smaller, 0) == DDPRUN_OK);
  ddprun_group_destroy(smaller);
  CHECK(ddprun_group_shutdown(group, 60000) == DDPRUN_OK);
  CHECK(ddprun_barrier(group, 0) == DDPRUN_ABORTED);
  CHECK(strstr(ddprun_last_error(), "it was shut down"));
  ddprun_group_destroy(group);

  char prefix[32];
  snprintf(prefix, sizeof prefix, "mismatch %s", backend);
  options.prefix = prefix;
  CHECK(ddprun_group_create(&calls, &options, &group) == DDPRUN_OK);
  mismatch(group);
  ddprun_group_destroy(group);

  options.rank = n - 1;
  CHECK(ddprun_group_create(&calls, &options, &group) == DDPRUN_BAD_ARGUMENT && !group);
  options.rank = 0, options.prefix = "of a store that fails", calls.add = store_fails;
  if (n == 2) return; /* A world of one needs no store. */
  CHECK(ddprun_group_create(&calls, &options, &group) == DDPRUN_UNREACHABLE && !group);
  CHECK(strstr(ddprun_last_error(), "the program's store failed with 3"));
  calls.get = NULL;
  CHECK(ddprun_group_create(&calls, &options, &group) == DDPRUN_BAD_ARGUMENT);
  calls.size = 8;
  CHECK(ddprun_group_create(&calls, &options, &group) == DDPRUN_BAD_ARGUMENT);
}

static void refused(ddprun_group* group) {
  float value = 0;
  const int n = ddprun_world_size(group);
  ddprun_work* work = (ddprun_work*)&value;
  ddprun_buffer one = array(&value, 1, DDPRUN_F32);
  CHECK(ddprun_submit(group, NULL, &work) == DDPRUN_BAD_ARGUMENT && !work);
  ddprun_call call = call_of(DDPRUN_ALL_REDUCE);
  CHECK(ddprun_submit(NULL, &call, NULL) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_submit(group, &call, NULL) == DDPRUN_BAD_ARGUMENT); /* No array. */
  call.outs = 1;
  CHECK(ddprun_submit(group, &call, NULL) == DDPRUN_BAD_ARGUMENT); /* A null one. */
  call.out = &one;
  for (int32_t operation = -1; operation < 30; ++operation) {
    call.operation = operation;
    call.op = 77;
    if (operation >= 1 && operation <= 12 && operation != 7) continue;
    CHECK(ddprun_submit(group, &call, NULL) == DDPRUN_BAD_ARGUMENT);
    CHECK(strstr(ddprun_last_error(), "unknown operation"));
  }
  call.operation = DDPRUN_ALL_REDUCE;
  CHECK(ddprun_submit(group, &call, NULL) == DDPRUN_BAD_ARGUMENT);
  call.op = DDPRUN_SUM, call.flags = 4;
  CHECK(ddprun_submit(group, &call, NULL) == DDPRUN_BAD_ARGUMENT);
  call.flags = 0, call.size = sizeof call + 8;
  CHECK(ddprun_submit(group, &call, NULL) == DDPRUN_BAD_ARGUMENT);
  call = call_of(DDPRUN_ALL_GATHER);
  ddprun_buffer parts[BUFFERS_MAX];
  for (int i = 0; i < BUFFERS_MAX; ++i) parts[i] = one;
  CHECK(blocking(group, call, &one, 1, parts, (size_t)n + 1) == DDPRUN_BAD_ARGUMENT);
  CHECK(strstr(ddprun_last_error(), "`out` of all_gather must be one array, or one for each rank"));
  CHECK(blocking(group, call, parts, 2, &one, 1) == DDPRUN_BAD_ARGUMENT);
  CHECK(strstr(ddprun_last_error(), "`in` of all_gather must be one array, not 2"));
  parts[n - 1].type = DDPRUN_I32;
  CHECK(n == 1 || blocking(group, call, &one, 1, parts, (size_t)n) == DDPRUN_BAD_ARGUMENT);
  parts[n - 1] = one;
  CHECK(n == 1 || blocking(group, call_of(DDPRUN_ALL_TO_ALL), parts, (size_t)n, parts,
                           (size_t)n) == DDPRUN_BAD_ARGUMENT);
  CHECK(n == 1 || strstr(ddprun_last_error(), "share memory"));
  ddprun_error_info info = {.size = sizeof info};
  CHECK(ddprun_last_error_info(&info) == DDPRUN_OK && info.status == DDPRUN_BAD_ARGUMENT);
  CHECK(info.rank == ddprun_rank(group) || n == 1);
  info.size = 16;
  CHECK(ddprun_last_error_info(&info) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_last_error_info(NULL) == DDPRUN_BAD_ARGUMENT);
  int done = 0;
  int64_t time = 0;
  CHECK(ddprun_work_wait_for(NULL, 0, &done) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_work_times(NULL, &time, &time) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_group_completion_fd(group, NULL) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_group_shutdown(group, -1) == DDPRUN_BAD_ARGUMENT);
  CHECK(strcmp(ddprun_host_of(group, 1000), "") == 0 && ddprun_device(NULL) == -1);
  CHECK(ddprun_barrier(group, 0) == DDPRUN_OK); /* It has survived all that. */
}

static void* in_a_call(void* group) {
  ddprun_status status = DDPRUN_BAD_ARGUMENT; /* While the other thread is in its call. */
  while (status == DDPRUN_BAD_ARGUMENT) status = ddprun_barrier(group, 0);
  CHECK(status == DDPRUN_OK);
  return NULL;
}

/* A second thread and a forked child are told so. */
static void elsewhere(ddprun_group* group) {
  const int n = ddprun_world_size(group), rank = ddprun_rank(group);
  ddprun_work* work = NULL;
  const ddprun_call call = call_of(DDPRUN_BARRIER);
  CHECK(ddprun_submit(group, &call, &work) == DDPRUN_OK);
  const pid_t child = fork();
  if (child == 0) {
    const int refused = ddprun_work_wait(work) == DDPRUN_BAD_ARGUMENT &&
                        ddprun_barrier(group, 0) == DDPRUN_BAD_ARGUMENT &&
                        ddprun_group_shutdown(group, 0) == DDPRUN_BAD_ARGUMENT;
    ddprun_work_destroy(work);
    ddprun_group_destroy(group);
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  CHECK(waitpid(child, &status, 0) == child && status == 0);
  CHECK(ddprun_work_wait(work) == DDPRUN_OK);
  ddprun_work_destroy(work);
  pthread_t thread;
  if (rank == 0 && n > 1) {
    CHECK(pthread_create(&thread, NULL, in_a_call, group) == 0);
    do {
      usleep(100);
      CHECK(ddprun_barrier(group, -1) == DDPRUN_BAD_ARGUMENT);
    } while (!strstr(ddprun_last_error(), "another thread is in a call"));
  }
  CHECK(ddprun_store_add(group, "second", 1, &(int64_t){0}) == DDPRUN_OK);
  while (rank > 0) { /* Until rank 0's second thread was refused. */
    int64_t here = 0;
    CHECK(ddprun_store_add(group, "second", 0, &here) == DDPRUN_OK);
    if (here == n) break;
    usleep(100);
  }
  if (rank > 0) CHECK(ddprun_barrier(group, 0) == DDPRUN_OK);
  if (rank == 0 && n > 1) CHECK(pthread_join(thread, NULL) == 0);
}

/* Work that is under way when the group is shut down is aborted, wherever it waits. */
static void end(ddprun_group* group) {
  const int n = ddprun_world_size(group), rank = ddprun_rank(group);
  ddprun_work *barrier = NULL, *message = NULL;
  ddprun_call call = call_of(DDPRUN_BARRIER);
  int64_t value = 0;
  const ddprun_buffer out = array(&value, 1, DDPRUN_I64);
  ddprun_call recv = call_of(DDPRUN_RECV);
  recv.out = &out, recv.outs = 1, recv.root = (rank + 1) % n, recv.tag = 99;
  if (n > 1 && rank == 0) {
    CHECK(ddprun_submit(group, &call, &barrier) == DDPRUN_OK);
    CHECK(ddprun_submit(group, &recv, &message) == DDPRUN_OK);
    CHECK(ddprun_group_shutdown(group, 20) == DDPRUN_TIMED_OUT);
    CHECK(ddprun_work_wait(barrier) == DDPRUN_ABORTED);
    CHECK(ddprun_work_wait(message) == DDPRUN_ABORTED);
    ddprun_error_info info = {.size = sizeof info};
    CHECK(ddprun_work_error(message, &info) == DDPRUN_OK && info.status == DDPRUN_ABORTED);
    CHECK(strstr(info.operation, "recv") && strlen(info.host) > 0);
    ddprun_work_destroy(barrier);
    ddprun_work_destroy(message);
    CHECK(ddprun_store_set(group, "ended", "", 0) == DDPRUN_OK);
  }
  const char* const ended = "ended";
  CHECK(n == 1 || ddprun_store_wait(group, &ended, 1, 60000) == DDPRUN_OK);
  ddprun_group_abort(group);
  CHECK(ddprun_submit(group, &call, NULL) == DDPRUN_ABORTED);
  CHECK(n == 1 || ddprun_submit(group, &recv, NULL) == DDPRUN_ABORTED);
}

int main(void) {
  ddprun_group* group = NULL;
  CHECK(ddprun_group_init(NULL, &group) == DDPRUN_OK);
  const form forms[] = {blocking, awaited};
  for (int i = 0; i < 2; ++i) {
    reductions(group, forms[i]);
    unequal_parts(group, forms[i]);
  }
  messages(group);
  completions(group);
  memory(group);
  part_of_the_job(group, "shm");
  part_of_the_job(group, "gloo");
  CHECK(ddprun_set_phase(group, "refusals") == DDPRUN_OK);
  CHECK(ddprun_set_phase(group, NULL) == DDPRUN_OK);
  refused(group);
  CHECK(ddprun_barrier(group, 0) == DDPRUN_OK);
  elsewhere(group);
  CHECK(ddprun_barrier(group, 0) == DDPRUN_OK);
  end(group);
  printf("C calls: rank %d of %d on %s: right\n", ddprun_rank(group), ddprun_world_size(group),
         ddprun_backend(group));
  ddprun_group_destroy(group);
  return 0;
}
