/* What the C interface has beside groups and collectives: store, metrics, seeds, checkpoints, the
   timer of gradients, batches, sums, shrink, spawn. One rank of a job that ddprun starts. */

#include <string.h>
#include <unistd.h>

#include "tests/support/c_check.h"

static void store(ddprun_group* group) {
  const int n = ddprun_world_size(group), rank = ddprun_rank(group);
  const char* const both[] = {"one", "two"};
  int exist = -1, existed = -1;
  int64_t sum = 0;
  if (rank == 0) {
    CHECK(ddprun_store_check(group, both, 2, &exist) == DDPRUN_OK && exist == 0);
    CHECK(ddprun_store_set(group, "one", "a\0b", 3) == DDPRUN_OK);
    CHECK(ddprun_store_set(group, "two", NULL, 0) == DDPRUN_OK);
  }
  CHECK(ddprun_store_wait(group, both, 2, 60000) == DDPRUN_OK);
  CHECK(ddprun_store_check(group, both, 2, &exist) == DDPRUN_OK && exist == 1);
  const void* value = NULL;
  size_t bytes = 0;
  CHECK(ddprun_store_get(group, "one", 60000, &value, &bytes) == DDPRUN_OK);
  CHECK(bytes == 3 && memcmp(value, "a\0b", 4) == 0);
  CHECK(ddprun_store_add(group, "sum", 5, &sum) == DDPRUN_OK && sum % 5 == 0);
  CHECK(ddprun_barrier(group, 0) == DDPRUN_OK);
  CHECK(ddprun_store_add(group, "sum", 0, &sum) == DDPRUN_OK && sum == 5 * n);
  CHECK(ddprun_barrier(group, 0) == DDPRUN_OK);
  if (rank == 0) CHECK(ddprun_store_erase(group, "sum", &existed) == DDPRUN_OK && existed == 1);
  CHECK(ddprun_store_erase(group, "no such key", NULL) == DDPRUN_OK);
  CHECK(ddprun_store_get(group, "no such key", 20, &value, &bytes) == DDPRUN_TIMED_OUT);
  CHECK(ddprun_store_get(NULL, "one", 20, &value, &bytes) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_store_get(group, NULL, 20, &value, &bytes) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_store_set(group, "one", NULL, 3) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_store_wait(group, NULL, 1, 0) == DDPRUN_BAD_ARGUMENT);
}

/* Rank r gives r bytes. */
static void objects(ddprun_group* group) {
  const int n = ddprun_world_size(group), rank = ddprun_rank(group);
  const char mine[] = "abcdefgh";
  const void* all = NULL;
  const size_t* counts = NULL;
  size_t count = 0;
  CHECK(ddprun_broadcast_bytes(group, rank == n - 1 ? "a\0b" : NULL, 3, n - 1, &all, &count) ==
        DDPRUN_OK);
  CHECK(count == 3 && memcmp(all, "a\0b", 3) == 0);
  CHECK(ddprun_all_gather_bytes(group, mine, (size_t)rank, &all, &counts) == DDPRUN_OK);
  const char* next = all;
  for (int r = 0; r < n; ++r) {
    CHECK(counts[r] == (size_t)r && memcmp(next, mine, counts[r]) == 0);
    next += counts[r];
  }
  CHECK(ddprun_gather_bytes(group, mine, (size_t)rank, 0, &all, &counts) == DDPRUN_OK);
  CHECK(rank == 0 ? counts[n - 1] == (size_t)n - 1 : !all && !counts);
  CHECK(ddprun_all_gather_bytes(group, NULL, 1, &all, &counts) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_broadcast_bytes(group, mine, 1, 0, NULL, &count) == DDPRUN_BAD_ARGUMENT);

  CHECK(ddprun_local_world_size(group) == n && ddprun_group_rank(group) == 0);
  CHECK(strlen(ddprun_run_id(group)) > 0 && strcmp(ddprun_run_id(NULL), "") == 0);
  CHECK(ddprun_local_world_size(NULL) == -1 && ddprun_group_rank(NULL) == -1);
  CHECK(ddprun_expect_steps(group, 100) == DDPRUN_OK);
  CHECK(ddprun_expect_steps(NULL, 100) == DDPRUN_BAD_ARGUMENT);
}

static void metrics(ddprun_group* group) {
  const int n = ddprun_world_size(group), rank = ddprun_rank(group);
  ddprun_metrics* m = NULL;
  CHECK(ddprun_metrics_create(&m) == DDPRUN_OK);
  CHECK(ddprun_metrics_add(m, "loss", rank, 1) == DDPRUN_OK);
  if (rank == 0) CHECK(ddprun_metrics_add(m, "accuracy", 0.5, 8) == DDPRUN_OK);
  CHECK(ddprun_metrics_add(m, "loss", 1, -1) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_metrics_add(NULL, "loss", 1, 1) == DDPRUN_BAD_ARGUMENT);
  size_t count = 0;
  ddprun_metric one = {.size = sizeof one};
  CHECK(ddprun_metrics_get(m, 0, &one) == DDPRUN_BAD_ARGUMENT && !one.name);
  CHECK(ddprun_metrics_reduce(m, group, &count) == DDPRUN_OK && count == 2);
  CHECK(ddprun_metrics_get(m, 0, &one) == DDPRUN_OK && strcmp(one.name, "accuracy") == 0);
  CHECK(one.weight == 8 && one.average == 0.5 && one.size == sizeof one);
  CHECK(ddprun_metrics_get(m, 1, &one) == DDPRUN_OK && strcmp(one.name, "loss") == 0);
  CHECK(one.sum == n * (n - 1) / 2 && one.min == 0 && one.max == n - 1);
  CHECK(ddprun_metrics_get(m, 2, &one) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_metrics_get(NULL, 0, &one) == DDPRUN_BAD_ARGUMENT);
  one.size = 8;
  CHECK(ddprun_metrics_get(m, 0, &one) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_metrics_reduce(m, group, &count) == DDPRUN_OK && count == 0);
  ddprun_metrics_destroy(m);
  ddprun_metrics_destroy(NULL);
  double average = -1;
  CHECK(ddprun_average(group, rank, &average) == DDPRUN_OK && average == (n - 1) / 2.0);
  uint64_t seed = 0, largest = 0;
  CHECK(ddprun_shared_seed(group, &seed) == DDPRUN_OK);
  largest = seed;
  const ddprun_buffer b = DDPRUN_BUFFER(&largest, 1, DDPRUN_U64);
  CHECK(ddprun_all_reduce(group, &b, DDPRUN_MAX, 0) == DDPRUN_OK && largest == seed);
}

static void checkpoints(ddprun_group* group) {
  const int n = ddprun_world_size(group), rank = ddprun_rank(group);
  char folder[64] = "/tmp/ddprun_c_XXXXXX";
  if (rank == 0) CHECK(mkdtemp(folder) != NULL);
  const ddprun_buffer name = DDPRUN_BUFFER(folder, sizeof folder, DDPRUN_U8);
  CHECK(ddprun_broadcast(group, &name, 0, 0) == DDPRUN_OK);
  const char* path = "";
  CHECK(ddprun_checkpoint_latest(group, folder, &path) == DDPRUN_OK && path == NULL);

  ddprun_checkpoint_writer* writer = NULL;
  CHECK(ddprun_checkpoint_writer_create(group, folder, 1, &writer) == DDPRUN_OK);
  int16_t mine[2] = {(int16_t)(2 * rank), (int16_t)(2 * rank + 1)};
  const ddprun_checkpoint_piece piece = {.size = sizeof piece,
                                         .name = "weights",
                                         .data = mine,
                                         .count = 2,
                                         .offset = 2 * (size_t)rank,
                                         .total = 2 * (size_t)n,
                                         .type = DDPRUN_I16};
  CHECK(ddprun_checkpoint_save_async(writer, 7, &piece, 1) == DDPRUN_OK);
  mine[0] = -1; /* It was copied. */
  CHECK(ddprun_checkpoint_wait(writer) == DDPRUN_OK);
  CHECK(ddprun_checkpoint_save_async(writer, 8, NULL, 1) == DDPRUN_BAD_ARGUMENT);
  ddprun_checkpoint_writer_destroy(writer);

  CHECK(ddprun_checkpoint_latest(NULL, folder, &path) == DDPRUN_OK && path != NULL);
  ddprun_checkpoint* checkpoint = NULL;
  CHECK(ddprun_checkpoint_open(path, &checkpoint) == DDPRUN_OK);
  CHECK(ddprun_checkpoint_step(checkpoint) == 7 && ddprun_checkpoint_world_size(checkpoint) == n);
  CHECK(ddprun_checkpoint_arrays(checkpoint) == 1 && ddprun_checkpoint_arrays(NULL) == -1);
  const char* array = NULL;
  ddprun_type type = -1;
  size_t count = 0;
  CHECK(ddprun_checkpoint_array(checkpoint, 0, &array, &type, &count) == DDPRUN_OK);
  CHECK(strcmp(array, "weights") == 0 && type == DDPRUN_I16 && count == 2 * (size_t)n);
  CHECK(ddprun_checkpoint_array(checkpoint, 1, &array, &type, &count) == DDPRUN_BAD_ARGUMENT);
  int16_t last = -1;
  ddprun_buffer out = DDPRUN_BUFFER(&last, 1, DDPRUN_I16);
  CHECK(ddprun_checkpoint_read(checkpoint, "weights", &out, 2 * (size_t)n - 1) == DDPRUN_OK);
  CHECK(last == 2 * n - 1);
  CHECK(ddprun_checkpoint_read(checkpoint, "weight", &out, 0) == DDPRUN_BAD_ARGUMENT);
  const ddprun_buffer none = DDPRUN_BUFFER(NULL, 1, DDPRUN_I16);
  CHECK(ddprun_checkpoint_read(checkpoint, "weights", &none, 0) == DDPRUN_BAD_ARGUMENT);
  ddprun_checkpoint_destroy(checkpoint);
  CHECK(ddprun_checkpoint_open("/no/such/folder", &checkpoint) == DDPRUN_CORRUPT && !checkpoint);
  CHECK(ddprun_barrier(group, 0) == DDPRUN_OK);
  char command[128];
  snprintf(command, sizeof command, "rm -r %s", folder);
  if (rank == 0) CHECK(system(command) == 0);
}

static void timer(ddprun_group* group) {
  float value = 1;
  const ddprun_parameter parameter = {
      .size = sizeof parameter, .data = &value, .count = 1, .type = DDPRUN_F32};
  ddprun_ddp* ddp = NULL;
  CHECK(ddprun_ddp_create(group, &parameter, 1, NULL, &ddp) == DDPRUN_OK);
  for (int step = 0; step < 9; ++step) {
    CHECK(ddprun_ddp_begin_forward(ddp) == DDPRUN_OK);
    CHECK(ddprun_ddp_begin_backward(ddp, 1) == DDPRUN_OK);
    CHECK(ddprun_ddp_mark_ready(ddp, 0) == DDPRUN_OK);
    CHECK(ddprun_ddp_finish_backward(ddp) == DDPRUN_OK);
  }
  ddprun_sync_report report = {.size = sizeof report, .data_ns = -1, .optimizer_ns = -1};
  CHECK(ddprun_ddp_report(ddp, 1, &report) == DDPRUN_OK);
  CHECK(report.steps == 9 && report.bytes > 0 && report.buckets > 0);
  CHECK(ddprun_ddp_report(ddp, 0, &report) == DDPRUN_OK && report.steps == 1);
  CHECK(report.size == sizeof report && report.forward_ns >= 0);
  CHECK(report.data_ns == 0 && report.optimizer_ns == 0); /* The program says nothing of them. */
  report.size = 8;
  CHECK(ddprun_ddp_report(ddp, 0, &report) == DDPRUN_BAD_ARGUMENT);
  const char* json = NULL;
  CHECK(ddprun_ddp_window_json(ddp, &json) == DDPRUN_OK && (*json == '{' || *json == '\0'));
  CHECK(ddprun_ddp_window_json(NULL, &json) == DDPRUN_BAD_ARGUMENT);
  ddprun_ddp_destroy(ddp);
}

static void batches(void) {
  const ddprun_data_set set = {.size = sizeof set, .length = 10};
  ddprun_batch_options options = {.size = sizeof options,
                                  .sets = &set,
                                  .set_count = 1,
                                  .global_batch = 4,
                                  .seed = 7,
                                  .shards = 2,
                                  .shuffle = 1,
                                  .last = DDPRUN_LAST_SMALLER};
  ddprun_batches* b = NULL;
  CHECK(ddprun_batches_create(&options, &b) == DDPRUN_OK);
  int64_t steps = 0;
  CHECK(ddprun_batches_steps_per_epoch(b, &steps) == DDPRUN_OK && steps == 3);
  int seen[10] = {0};
  const ddprun_sample* samples = NULL;
  size_t count = 0, all = 0;
  for (int64_t step = 0; step < steps; ++step) {
    for (int shard = 0; shard < 2; ++shard) {
      CHECK(ddprun_batches_samples(b, step, shard, &samples, &count) == DDPRUN_OK);
      for (size_t i = 0; i < count; ++i, ++all) ++seen[samples[i].index];
    }
  }
  for (int i = 0; i < 10; ++i) CHECK(seen[i] == 1);
  CHECK(all == 10);
  CHECK(ddprun_batches_samples(b, 2, -1, &samples, &count) == DDPRUN_OK && count == 2);
  CHECK(ddprun_batches_samples(b, 2, 9, &samples, &count) == DDPRUN_BAD_ARGUMENT);
  ddprun_batches_destroy(b);
  options.last = 3;
  CHECK(ddprun_batches_create(&options, &b) == DDPRUN_BAD_ARGUMENT && !b);
  options.last = 0, options.sets = NULL;
  CHECK(ddprun_batches_create(&options, &b) == DDPRUN_BAD_ARGUMENT);
  int first = -1, mine = -1;
  CHECK(ddprun_shards_of(1, 3, 8, &first, &mine) == DDPRUN_OK && mine >= 2);
  CHECK(ddprun_shards_of(3, 3, 8, &first, &mine) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_stream_seed(1, 2, 3, 8) != ddprun_stream_seed(1, 2, 4, 8));
}

static void sums(ddprun_group* group) {
  const int n = ddprun_world_size(group), rank = ddprun_rank(group);
  const size_t sizes[] = {2, 1};
  const ddprun_sum_options options = {.size = sizeof options, .equal = 5};
  ddprun_sums* s = NULL;
  CHECK(ddprun_sums_create(sizes, 2, &options, &s) == DDPRUN_OK);
  CHECK(ddprun_sums_use(s, group) == DDPRUN_OK);
  float a[2], b[1];
  float* const out[] = {a, b};
  const float* const in[] = {a, b};
  ddprun_sum_result result = {.size = sizeof result};
  int attempts = 0;
  do {
    a[0] = (float)(rank + 1), a[1] = 2, b[0] = 3;
    CHECK(ddprun_sums_begin(s) == DDPRUN_OK);
    CHECK(ddprun_sums_add(s, in) == DDPRUN_OK);
    CHECK(ddprun_sums_reduce(s, group, out, 1, 10, &result) == DDPRUN_OK);
  } while (result.kind == DDPRUN_SUMS_OVER && ++attempts < 5);
  CHECK(result.kind == DDPRUN_SUMS_GOOD && result.note == 10 * n && result.shards == n);
  CHECK(a[0] == (float)(n * (n + 1) / 2) && a[1] == (float)(2 * n) && b[0] == (float)(3 * n));
  CHECK(ddprun_sums_commit(s) == DDPRUN_OK);
  const void* state = NULL;
  size_t bytes = 0;
  CHECK(ddprun_sums_state(s, &state, &bytes) == DDPRUN_OK && bytes > 0);
  CHECK(ddprun_sums_restore(s, state, bytes) == DDPRUN_OK);
  CHECK(ddprun_sums_restore(s, state, bytes - 1) == DDPRUN_MISMATCH);
  CHECK(ddprun_sums_add(s, NULL) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_sums_use(NULL, group) == DDPRUN_BAD_ARGUMENT);
  ddprun_sums_destroy(s);
}

static void bytes(ddprun_group* group) {
  char from[4] = "abc", to[4] = "";
  CHECK(ddprun_copy(group, to, from, 4) == DDPRUN_OK && strcmp(to, "abc") == 0);
  CHECK(ddprun_zero(group, to, 4) == DDPRUN_OK && to[0] == 0);
  CHECK(ddprun_copy(group, NULL, from, 4) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_use_stream(group, NULL, 0) == DDPRUN_OK);
  CHECK(ddprun_use_stream(NULL, NULL, 0) == DDPRUN_BAD_ARGUMENT);
  ddprun_install_crash_report();
}

/* All but the last rank go on. */
static void shrink(ddprun_group* group) {
  const int n = ddprun_world_size(group), rank = ddprun_rank(group);
  const int32_t lost = n - 1;
  ddprun_group *whole = NULL, *smaller = NULL;
  CHECK(ddprun_group_split(group, 0, 0, &whole) == DDPRUN_OK);
  CHECK(ddprun_group_shrink(whole, NULL, 1, 0, &smaller) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_group_shrink(whole, &rank, 1, 0, &smaller) == DDPRUN_BAD_ARGUMENT);
  if (n > 1 && rank < n - 1) {
    CHECK(ddprun_group_shrink(whole, &lost, 1, 60000, &smaller) == DDPRUN_OK);
    CHECK(ddprun_world_size(smaller) == n - 1 && ddprun_barrier(smaller, 0) == DDPRUN_OK);
    CHECK(ddprun_barrier(whole, 0) == DDPRUN_ABORTED);
  }
  CHECK(ddprun_barrier(group, 0) == DDPRUN_OK);
  ddprun_group_destroy(smaller);
  ddprun_group_destroy(whole);
}

static int well(int rank, void* user) {
  ddprun_group* group = NULL;
  const int joined = ddprun_group_init(NULL, &group) == DDPRUN_OK;
  const int right = joined && ddprun_rank(group) == rank && ddprun_world_size(group) == *(int*)user;
  ddprun_group_destroy(group);
  return right ? 0 : 1;
}

static int one_fails(int rank, void* user) {
  (void)user;
  if (rank == 1) return 42;
  pause();
  return 0;
}

static int returns(int rank, void* user) {
  (void)rank;
  return *(int*)user;
}

/* Before this process has threads. */
static void spawn(void) {
  int n = 2, code = -1;
  CHECK(ddprun_spawn(n, well, &n, 0, &code) == DDPRUN_OK && code == 0);
  CHECK(ddprun_spawn(n, one_fails, NULL, 1000, &code) != DDPRUN_OK && code == 42);
  CHECK(ddprun_last_error_peer() == 1);
  int more = 256; /* No exit code is so large. */
  CHECK(ddprun_spawn(1, returns, &more, 0, &code) != DDPRUN_OK && code == 1);
  more = -1;
  CHECK(ddprun_spawn(1, returns, &more, 0, &code) != DDPRUN_OK && code == 255);
  CHECK(ddprun_spawn(n, NULL, NULL, 0, NULL) == DDPRUN_BAD_ARGUMENT);
}

static void foreign_steps(void) {
  ddprun_timer* steps = NULL;
  CHECK(ddprun_timer_create(&steps) == DDPRUN_OK);
  CHECK(ddprun_timer_checkpoint(steps, 1000) == DDPRUN_OK);
  CHECK(ddprun_timer_saved(steps, 0) == DDPRUN_OK);
  CHECK(ddprun_timer_checkpoint(steps, -1) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_timer_saved(steps, -1) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_timer_saved(NULL, 0) == DDPRUN_BAD_ARGUMENT);
  ddprun_timer_destroy(steps);
}

/* The ranks share a folder that is played to be that of the run. */
static void memory_places(ddprun_group* group) {
  const int n = ddprun_world_size(group), rank = ddprun_rank(group);
  char folder[64] = "/tmp/ddprun_c_XXXXXX";
  if (rank == 0) CHECK(mkdtemp(folder) != NULL);
  const ddprun_buffer name = DDPRUN_BUFFER(folder, sizeof folder, DDPRUN_U8);
  CHECK(ddprun_broadcast(group, &name, 0, 0) == DDPRUN_OK);
  unsetenv("DDPRUN_MEMORY");
  ddprun_checkpoint_place places[2] = {{.size = sizeof places[0]}, {.size = sizeof places[0]}};
  CHECK(ddprun_has_memory_folder() == 0);
  CHECK(ddprun_checkpoint_in_memory(NULL, &places[0]) == DDPRUN_BAD_ENVIRONMENT);
  setenv("DDPRUN_MEMORY", folder, 1);
  CHECK(ddprun_has_memory_folder() == 1);
  CHECK(ddprun_checkpoint_in_memory("mine", &places[0]) == DDPRUN_OK);
  CHECK(strncmp(places[0].folder, folder, strlen(folder)) == 0 && places[0].shared == 0);
  CHECK(strcmp(places[0].folder + strlen(folder), "/mine") == 0);
  CHECK(ddprun_checkpoint_in_memory(NULL, NULL) == DDPRUN_BAD_ARGUMENT);
  char disk[96];
  snprintf(disk, sizeof disk, "%s/disk", folder);
  places[1].folder = disk;
  places[1].shared = 1;

  const char* path = "";
  CHECK(ddprun_checkpoint_latest_of(group, places, 2, &path) == DDPRUN_OK && path == NULL);
  int16_t value = (int16_t)(5 + rank);
  const ddprun_checkpoint_piece piece = {.size = sizeof piece,
                                         .name = "value",
                                         .data = &value,
                                         .count = 1,
                                         .offset = (size_t)rank,
                                         .total = (size_t)n,
                                         .type = DDPRUN_I16};
  for (int i = 1; i >= 0; --i) { /* The disk has step 3, memory step 4. */
    ddprun_checkpoint_writer* writer = NULL;
    CHECK(ddprun_checkpoint_writer_create_at(group, &places[i], 0, &writer) == DDPRUN_OK);
    CHECK(ddprun_checkpoint_save_async(writer, 4 - i, &piece, 1) == DDPRUN_OK);
    CHECK(ddprun_checkpoint_wait(writer) == DDPRUN_OK);
    ddprun_checkpoint_writer_destroy(writer);
  }
  CHECK(ddprun_checkpoint_latest_of(group, places, 2, &path) == DDPRUN_OK && path != NULL);
  ddprun_checkpoint* checkpoint = NULL;
  CHECK(ddprun_checkpoint_open(path, &checkpoint) == DDPRUN_OK);
  CHECK(ddprun_checkpoint_step(checkpoint) == 4);
  int16_t last = -1;
  const ddprun_buffer out = DDPRUN_BUFFER(&last, 1, DDPRUN_I16);
  CHECK(ddprun_checkpoint_read(checkpoint, "value", &out, (size_t)n - 1) == DDPRUN_OK);
  CHECK(last == 5 + n - 1);
  ddprun_checkpoint_destroy(checkpoint);
  places[0].folder = NULL;
  CHECK(ddprun_checkpoint_latest_of(group, places, 2, &path) == DDPRUN_BAD_ARGUMENT && !path);
  CHECK(ddprun_barrier(group, 0) == DDPRUN_OK);
  unsetenv("DDPRUN_MEMORY");
  char command[128];
  snprintf(command, sizeof command, "rm -r %s", folder);
  if (rank == 0) CHECK(system(command) == 0);
}

int main(void) {
  spawn();
  ddprun_group* group = NULL;
  CHECK(ddprun_group_init(NULL, &group) == DDPRUN_OK);
  store(group);
  objects(group);
  metrics(group);
  checkpoints(group);
  memory_places(group);
  foreign_steps();
  timer(group);
  batches();
  sums(group);
  bytes(group);
  shrink(group);
  CHECK(ddprun_barrier(group, 0) == DDPRUN_OK);
  printf("C parts: rank %d of %d: right\n", ddprun_rank(group), ddprun_world_size(group));
  ddprun_group_destroy(group);
  return 0;
}
