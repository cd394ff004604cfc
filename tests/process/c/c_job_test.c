/* An elastic job in C: a rank is killed, the others take its step again, and the sums are right.
   One rank of a job that ddprun starts with restarts. */

#include <signal.h>
#include <string.h>
#include <unistd.h>

#include "tests/support/c_check.h"

enum { kSteps = 300, kShards = 12, kDeadly = 7, kMoments = 50 };

struct training {
  double weights[2];
  double gradient;
  int64_t steps;      /* Kept by functions. */
  char text[32];      /* What was saved. */
  ddprun_batches* batches;
  ddprun_sharded* moments; /* Element i is i * (1 + steps). */
  int between, calls; /* Of this process. */
  ddprun_step* step;
};

static int32_t save(void* user, const void** state, size_t* bytes) {
  struct training* t = user;
  *bytes = (size_t)snprintf(t->text, sizeof t->text, "%lld", (long long)t->steps);
  *state = t->text;
  return 0;
}

static int32_t load(void* user, const void* state, size_t bytes) {
  struct training* t = user;
  char text[32] = "";
  if (bytes >= sizeof text) return -1;
  memcpy(text, state, bytes);
  t->steps = atoll(text);
  return 0;
}

static int32_t update(void* user) {
  struct training* t = user;
  CHECK(ddprun_step_commit(t->step, NULL, NULL) == DDPRUN_BAD_ARGUMENT);
  CHECK(strstr(ddprun_last_error(), "one step has one commit()"));
  CHECK(ddprun_barrier(ddprun_step_group(t->step), 0) == DDPRUN_BAD_ARGUMENT);
  CHECK(strstr(ddprun_last_error(), "communicates with nobody"));
  t->weights[0] += t->gradient;
  t->weights[1] += t->gradient * (double)t->steps;
  ++t->steps;
  return 0;
}

static int32_t fill(void* user, size_t first, const ddprun_buffer* part) {
  (void)user;
  for (size_t i = 0; i < part->count; ++i) ((double*)part->data)[i] = (double)(first + i);
  return 0;
}

static int32_t evaluate(ddprun_group* group, void* user) {
  struct training* t = user;
  double whole[kMoments];
  const ddprun_buffer all = DDPRUN_BUFFER(whole, kMoments, DDPRUN_F64);
  const ddprun_status status = ddprun_sharded_gather(t->moments, group, &all);
  if (status != DDPRUN_OK) return status;
  for (int i = 0; i < kMoments; ++i) CHECK(whole[i] == (double)(i * (1 + t->steps)));
  ++t->between;
  return ddprun_barrier(group, 0);
}

/* The part of this rank, and then all of them. */
static ddprun_status change_moments(ddprun_sharded* moments, ddprun_group* group, int64_t steps) {
  double whole[kMoments];
  size_t first = 0, same = 0;
  ddprun_buffer now = {.size = sizeof now}, next = {.size = sizeof next};
  const ddprun_buffer all = DDPRUN_BUFFER(whole, kMoments, DDPRUN_F64);
  CHECK(ddprun_sharded_now(moments, &first, &now) == DDPRUN_OK);
  CHECK(ddprun_sharded_next(moments, &same, &next) == DDPRUN_OK);
  CHECK(first == same && now.count == next.count && now.data != next.data);
  CHECK(now.count > 0 && now.type == DDPRUN_F64 && first + now.count <= kMoments);
  for (size_t i = 0; i < next.count; ++i) {
    CHECK(((double*)now.data)[i] == (double)(first + i) * (double)(1 + steps));
    ((double*)next.data)[i] += (double)(first + i);
  }
  const ddprun_status status = ddprun_sharded_gather_next(moments, group, &all);
  CHECK(status != DDPRUN_OK || whole[7] == 7.0 * (double)(2 + steps));
  return status;
}

/* The rank 1 that has been there from the beginning: its successors have called fewer bodies, or
   one more. */
static void die_once(ddprun_group* group, int calls) {
  if (ddprun_rank(group) == 1 && calls == kDeadly + 1) kill(getpid(), SIGKILL);
}

/* The samples of this rank's shards, by number. Not OK: a rank has died meanwhile. */
static ddprun_status count_samples(ddprun_step* step, const ddprun_batches* batches, int first,
                                   int count, int64_t* all) {
  const ddprun_sample* samples = NULL;
  size_t each = 0;
  int skipped = 1;
  *all = 0;
  for (int shard = first; shard < first + count; ++shard) {
    CHECK(ddprun_step_skips(step, shard) == 0);
    const ddprun_status begun = ddprun_step_begin_shard(step, shard, "two", &skipped);
    if (begun == DDPRUN_MEMBERSHIP_CHANGED) return begun;
    CHECK(begun == DDPRUN_OK && skipped == 0);
    CHECK(ddprun_step_samples(step, batches, shard, &samples, &each) == DDPRUN_OK);
    CHECK(each == 2 && samples[0].index != samples[1].index);
    *all += (int64_t)each;
  }
  CHECK(ddprun_step_samples(step, NULL, 0, &samples, &each) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_step_samples(step, batches, kShards, &samples, &each) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_step_samples(step, batches, 0, NULL, &each) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_step_begin_shard(step, 0, NULL, NULL) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_step_skips(NULL, 0) == -1);
  return DDPRUN_OK;
}

/* A reduction that carries what the ranks agree on. */
static int32_t ends_with_sums(ddprun_step* step, struct training* t) {
  const size_t one = 1;
  ddprun_sums* sums = NULL;
  float ones = 1;
  float* const all[] = {&ones};
  ddprun_sum_result found = {.size = sizeof found, .kind = DDPRUN_SUMS_OVER};
  CHECK(ddprun_sums_create(&one, 1, NULL, &sums) == DDPRUN_OK);
  uint64_t hash = 0;
  ddprun_status status = ddprun_sums_use(sums, ddprun_step_group(step));
  while (status == DDPRUN_OK && found.kind == DDPRUN_SUMS_OVER) {
    ones = 1;
    CHECK(ddprun_sums_begin(sums) == DDPRUN_OK);
    CHECK(ddprun_sums_hash(sums, (const float* const*)all, &hash) == DDPRUN_OK && hash != 0);
    CHECK(ddprun_sums_is_finite(sums) == 1);
    CHECK(ddprun_sums_add(sums, (const float* const*)all) == DDPRUN_OK);
    CHECK(ddprun_step_reduce(step, NULL, all, 1, 0, &found) == DDPRUN_BAD_ARGUMENT);
    status = ddprun_step_reduce(step, sums, all, 1, 3, &found);
  }
  CHECK(ddprun_sums_hash(sums, (const float* const*)all, &hash) == DDPRUN_BAD_ARGUMENT);
  const int ranks = ddprun_world_size(ddprun_step_group(step));
  CHECK(status != DDPRUN_OK || (ones == (float)ranks && found.note == 3 * ranks));
  ddprun_sums_destroy(sums);
  if (status != DDPRUN_OK) return status;
  const ddprun_status changed = change_moments(t->moments, ddprun_step_group(step), t->steps);
  return changed != DDPRUN_OK ? changed : ddprun_step_commit(step, update, t);
}

static int32_t body(ddprun_step* step, void* user) {
  struct training* t = user;
  ddprun_group* group = ddprun_step_group(step);
  int first = 0, count = 0;
  ++t->calls;
  t->step = step;
  CHECK(ddprun_step_number(step) == t->steps && ddprun_step_round(step) >= 0);
  CHECK(ddprun_step_is_repeated(step) >= 0);
  if (ddprun_step_number(step) == kDeadly) die_once(group, t->calls);
  CHECK(ddprun_step_shards(step, t->batches, 0, NULL, NULL, &count) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_step_shards(step, NULL, 0, NULL, &first, &count) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_step_shards(step, t->batches, 0, NULL, &first, &count) == DDPRUN_OK);
  CHECK(count >= 1 && first + count <= kShards);
  const double weights[kShards] = {1, 2};
  int again = 0;
  CHECK(ddprun_step_shards(step, NULL, kShards, weights, &again, &count) == DDPRUN_OK);
  CHECK(again == first);
  usleep(1000); /* So that a new process may come before the end. */
  int64_t samples = 0;
  const ddprun_status counted = count_samples(step, t->batches, first, count, &samples);
  if (counted != DDPRUN_OK) return counted;
  t->gradient = (double)samples / 2;
  for (int shard = first; shard < first + count; ++shard) {
    if (ddprun_step_is_audited(step, shard)) CHECK(ddprun_step_audit(step, shard, 42) == DDPRUN_OK);
  }
  const int32_t* audits = NULL;
  size_t audited = 0;
  CHECK(ddprun_step_audits(step, NULL, &audited) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_step_capture(step, -1, NULL, 0) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_step_capture(step, 0, "no folder for bundles", 0) == DDPRUN_OK);
  CHECK(ddprun_step_audits(step, &audits, &audited) == DDPRUN_OK);
  for (size_t i = 0; i < audited; ++i) CHECK(ddprun_step_audit(step, audits[i], 42) == DDPRUN_OK);
  group = ddprun_step_group(step);
  const ddprun_buffer sum = DDPRUN_BUFFER(&t->gradient, 1, DDPRUN_F64);
  const ddprun_status status = ddprun_all_reduce(group, &sum, DDPRUN_SUM, 0);
  if (status != DDPRUN_OK) return status;
  if (ddprun_step_number(step) % 4 == 1) return ends_with_sums(step, t);
  if (ddprun_step_number(step) % 2 == 0) { /* Its own way to agree whether to leave. */
    int32_t vote = 0;
    CHECK(ddprun_step_vote(step, &vote) == DDPRUN_OK);
    const ddprun_buffer votes = DDPRUN_BUFFER(&vote, 1, DDPRUN_I32);
    const ddprun_status voted = ddprun_all_reduce(group, &votes, DDPRUN_MAX, 0);
    if (voted != DDPRUN_OK) return voted;
    CHECK(ddprun_step_voted(step, vote) == DDPRUN_OK);
  }
  const ddprun_status changed = change_moments(t->moments, group, t->steps);
  return changed != DDPRUN_OK ? changed : ddprun_step_commit(step, update, t);
}

static int32_t fails(ddprun_step* step, void* user) {
  (void)step, (void)user;
  return -5;
}

static int32_t is_silent(ddprun_step* step, void* result) {
  (void)step, (void)result;
  return 0;
}

static int32_t returns_minus_seven(ddprun_step* step, void* result) {
  (void)step;
  *(int32_t*)result = -7;
  return 0;
}

/* A function whose runtime has ended it early is not one that has ended well. */
static void check_functions_with_results(ddprun_job* job) {
  const ddprun_functions* with = ddprun_functions_with_results();
  ddprun_functions own = {.size = sizeof own, .body = is_silent};
  CHECK(with->size == sizeof own);
  CHECK(ddprun_job_run(job, kSteps + 1, with->body, &own) == DDPRUN_NOT_ENDED);
  own.body = returns_minus_seven;
  CHECK(ddprun_job_run(job, kSteps + 1, with->body, &own) == -7);
}

int main(void) {
  struct training t = {.weights = {0}};
  ddprun_job* job = NULL;
  const ddprun_data_set set = {.size = sizeof set, .length = 5 * 2 * kShards};
  const ddprun_batch_options cut = {.size = sizeof cut, .sets = &set, .set_count = 1,
                                    .global_batch = 2 * kShards, .shards = kShards};
  int64_t size = 0;
  CHECK(ddprun_batches_create(&cut, &t.batches) == DDPRUN_OK);
  CHECK(ddprun_batches_size(t.batches, 0, &size) == DDPRUN_OK && size == 2 * kShards);
  CHECK(ddprun_batches_size(t.batches, -1, &size) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_job_create(NULL, NULL) == DDPRUN_BAD_ARGUMENT);
  ddprun_job_options options = {.size = sizeof options, .skip_poison = 1, .min_world = -1};
  CHECK(ddprun_job_create_with(&options, &job) == DDPRUN_BAD_ARGUMENT && !job);
  options.min_world = 1;
  options.check_every = -1;
  CHECK(ddprun_job_create_with(&options, &job) == DDPRUN_BAD_ARGUMENT && !job);
  options.check_every = 100;
  options.audit_per_million = -2;
  CHECK(ddprun_job_create_with(&options, &job) == DDPRUN_BAD_ARGUMENT && !job);
  options.audit_per_million = 1000001;
  CHECK(ddprun_job_create_with(&options, &job) == DDPRUN_BAD_ARGUMENT && !job);
  options.audit_per_million = 100000;
  options.memory_every = -2;
  CHECK(ddprun_job_create_with(&options, &job) == DDPRUN_BAD_ARGUMENT && !job);
  options.memory_every = -1;
  CHECK(ddprun_job_create_with(&options, &job) == DDPRUN_OK);
  CHECK(ddprun_job_rank(job) == -1 && ddprun_job_world_size(job) == 0);
  const ddprun_buffer weights = DDPRUN_BUFFER(t.weights, 2, DDPRUN_F64);
  CHECK(ddprun_job_keep(job, "weights", &weights) == DDPRUN_OK);
  CHECK(ddprun_job_keep(job, "weights", NULL) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_job_keep_state(job, "steps", save, load, &t) == DDPRUN_OK);
  CHECK(ddprun_job_keep_state(job, "steps", NULL, load, &t) == DDPRUN_BAD_ARGUMENT);
  ddprun_sharded_options moments = {.size = sizeof moments, .count = kMoments, .fill = fill,
                                    .type = DDPRUN_F64};
  CHECK(ddprun_job_keep_sharded(job, "moments", &moments, &t.moments) == DDPRUN_BAD_ARGUMENT);
  moments.shards = 10;
  CHECK(ddprun_job_keep_sharded(job, "moments", &moments, NULL) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_job_keep_sharded(job, "moments", NULL, &t.moments) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_job_keep_sharded(job, "moments", &moments, &t.moments) == DDPRUN_OK);
  CHECK(ddprun_sharded_now(NULL, NULL, NULL) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_job_between(job, 4, evaluate, &t) == DDPRUN_OK);
  CHECK(ddprun_job_between(job, 4, NULL, &t) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_job_run(job, kSteps, NULL, &t) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_job_run(NULL, kSteps, body, &t) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_job_run(job, -1, body, &t) == DDPRUN_BAD_ARGUMENT);
  CHECK(ddprun_job_run(job, kSteps, body, &t) == DDPRUN_OK);
  CHECK(ddprun_job_committed(job) == kSteps && ddprun_job_committed(NULL) == -1);
  CHECK(ddprun_job_rank(job) >= 0 && ddprun_job_rank(job) < ddprun_job_world_size(job));
  CHECK(ddprun_job_rank(NULL) == -1 && ddprun_job_world_size(NULL) == -1);
  CHECK(t.steps == kSteps && t.weights[0] == kSteps * kShards);
  CHECK(t.weights[1] == kShards * kSteps * (kSteps - 1) / 2);
  ddprun_job_counters counters = {.size = sizeof counters};
  CHECK(ddprun_job_counters_of(job, &counters) == DDPRUN_OK && counters.rounds >= 1);
  CHECK(ddprun_job_run(job, kSteps + 1, fails, &t) == -5);
  CHECK(strstr(ddprun_last_error(), "returned -5"));
  check_functions_with_results(job);
  printf("C job: %d steps, weights %g %g: right\n", (int)t.steps, t.weights[0], t.weights[1]);
  ddprun_job_destroy(job);
  ddprun_job_destroy(NULL);
  ddprun_batches_destroy(t.batches);
  return 0;
}
