#ifndef DDPRUN_C_ELASTIC_H
#define DDPRUN_C_ELASTIC_H
/* Training whose ranks come and go while processes stay, its batches, and its sums. The headers in
   ddprun/elastic and docs/elastic.md document the C++ counterparts. Include ddprun/c_api.h. */

#include "ddprun/c/c_base.h"
#include "ddprun/c/c_group.h"

#ifdef __cplusplus
extern "C" {
#endif

/* --- elastic/global_batches.h --- */

typedef struct ddprun_batches ddprun_batches;

typedef struct {
  size_t size;
  int64_t length;    /* Samples. */
  int64_t per_batch; /* Samples of each batch from this set; 0: all, if it is the only one. */
} ddprun_data_set;

enum { DDPRUN_LAST_SMALLER = 0, DDPRUN_LAST_DROPPED = 1, DDPRUN_LAST_CONTINUES = 2 };

typedef struct {
  size_t size;
  const ddprun_data_set* sets;
  size_t set_count;
  int64_t global_batch; /* Samples of a step, over all ranks. */
  uint64_t seed;
  int32_t shards; /* Fixed for the run; at least the largest number of ranks. */
  int32_t shuffle;
  int32_t last;     /* DDPRUN_LAST_... */
  int32_t reserved; /* 0. */
} ddprun_batch_options;

/* Has no size and never changes: programs index arrays of it that the library returns, with a
   stride of their own, and copy millions of samples as triples of int64_t. The three fields name a
   sample completely; what else is to be known of one would be returned by another function. */
typedef struct {
  int64_t set;   /* Of the batch options' sets. */
  int64_t index; /* In the set. */
  int64_t epoch; /* Of the set, from 0. */
} ddprun_sample;

ddprun_status ddprun_batches_create(const ddprun_batch_options* options, ddprun_batches** batches);
void ddprun_batches_destroy(ddprun_batches* batches);
ddprun_status ddprun_batches_steps_per_epoch(const ddprun_batches* batches, int64_t* steps);
/* The samples of a step's whole batch: fewer than global_batch at most at the end of an epoch. */
ddprun_status ddprun_batches_size(const ddprun_batches* batches, int64_t step, int64_t* count);
/* The samples of one shard of a step, or of the whole batch if `shard` is -1. Valid until this
   thread's next call of it. From any thread. */
ddprun_status ddprun_batches_samples(const ddprun_batches* batches, int64_t step, int shard,
                                     const ddprun_sample** samples, size_t* count);
/* The shards of a rank: *first .. *first + *count - 1. */
ddprun_status ddprun_shards_of(int rank, int world_size, int shards, int* first, int* count);
/* A seed of step and shard for a framework's own generator: stream_seed() of random_stream.h. */
uint64_t ddprun_stream_seed(uint64_t seed, uint64_t step, uint32_t shard, uint32_t shards);

/* --- elastic/gradient_sums.h --- */

typedef struct ddprun_sums ddprun_sums; /* One thread at a time. */

typedef struct {
  size_t size;
  size_t bucket_bytes; /* 0: the default of C++. */
  uint64_t equal;
  int32_t inexact;
  int32_t reserved; /* 0. */
} ddprun_sum_options;

enum { DDPRUN_SUMS_GOOD = 0, DDPRUN_SUMS_OVER = 1, DDPRUN_SUMS_NOT_FINITE = 2 };

typedef struct {
  size_t size;
  int64_t kind;   /* DDPRUN_SUMS_... */
  int64_t note;   /* The sum of what all ranks passed. */
  int64_t shards; /* The number that all ranks have added. */
  size_t tensor;  /* The first that is over or not finite. */
} ddprun_sum_result;

/* `sizes`: elements of each of `count` tensors. `options` may be NULL. */
ddprun_status ddprun_sums_create(const size_t* sizes, size_t count,
                                 const ddprun_sum_options* options, ddprun_sums** sums);
void ddprun_sums_destroy(ddprun_sums* sums);
ddprun_status ddprun_sums_use(ddprun_sums* sums, ddprun_group* group); /* Collective. */
ddprun_status ddprun_sums_begin(ddprun_sums* sums);
/* An array for each tensor; NULL where it has no gradient. */
ddprun_status ddprun_sums_add(ddprun_sums* sums, const float* const* gradients);
/* Into an array for each tensor, NULL: skipped. Collective. `divide_by`: above 0. *result, whose
   size the caller has set, is filled. */
ddprun_status ddprun_sums_reduce(ddprun_sums* sums, ddprun_group* group, float* const* gradients,
                                 double divide_by, int64_t note, ddprun_sum_result* result);
ddprun_status ddprun_sums_commit(ddprun_sums* sums);
/* GradientSums::hash: of what ddprun_sums_add() would add. */
ddprun_status ddprun_sums_hash(ddprun_sums* sums, const float* const* gradients, uint64_t* hash);
/* 1 or 0: GradientSums::is_finite. */
int ddprun_sums_is_finite(const ddprun_sums* sums);
/* Bytes for a checkpoint, valid until the next call with these sums. */
ddprun_status ddprun_sums_state(ddprun_sums* sums, const void** state, size_t* bytes);
ddprun_status ddprun_sums_restore(ddprun_sums* sums, const void* state, size_t bytes);

/* --- elastic/job.h --- */

typedef struct ddprun_job ddprun_job;   /* All calls from one thread; only one per process. */
typedef struct ddprun_step ddprun_step; /* While its body runs. */

/* Functions of the program that a job calls return 0 on success. Any other value ends their caller:
   the status of a failed call, mostly DDPRUN_MEMBERSHIP_CHANGED, is passed on, as C++ lets an
   exception pass; a negative number is returned by ddprun_job_run(). */
typedef int32_t (*ddprun_step_body)(ddprun_step* step, void* user);
typedef int32_t (*ddprun_apply)(void* user);
typedef int32_t (*ddprun_between)(ddprun_group* group, void* user);
/* Sets *state and *bytes, which stay valid until the next call for this job. */
typedef int32_t (*ddprun_save_state)(void* user, const void** state, size_t* bytes);
typedef int32_t (*ddprun_load_state)(void* user, const void* state, size_t bytes);

typedef struct {
  size_t size;
  const ddprun_init_options* init; /* Of each round's group; may be NULL. */
  int32_t skip_poison;             /* JobOptions::skip_poison. */
  int32_t min_world;               /* JobOptions::min_world. */
  int64_t check_every;             /* JobOptions::check_every; 0: never. */
  int32_t even_shards;             /* JobOptions::even_shards. */
  int32_t audit_per_million;       /* 10,000 times JobOptions::audit; 0: DDPRUN_AUDIT;
                                      -1: none. */
  int64_t memory_every;            /* JobOptions::memory_every; -1: never. */
} ddprun_job_options;

typedef struct {
  size_t size;
  int64_t rounds;
  int64_t planned;
  int64_t repeated_steps;
  uint64_t bytes_sent;
  uint64_t bytes_received;
  int64_t lost_us;
  int64_t moved_shards;   /* From slow ranks to faster ones, of all ranks. */
  int64_t audited_shards; /* Of other ranks, that this one has computed as well. */
} ddprun_job_counters;

/* `options`: of each round's group; may be NULL. */
ddprun_status ddprun_job_create(const ddprun_init_options* options, ddprun_job** job);
/* The same with further options; NULL: none. */
ddprun_status ddprun_job_create_with(const ddprun_job_options* options, ddprun_job** job);
void ddprun_job_destroy(ddprun_job* job);
/* State that is equal on all ranks between steps: an array, which must not move, or what `save`
   returns and `load` accepts. All ranks keep the same names in the same order. */
ddprun_status ddprun_job_keep(ddprun_job* job, const char* name, const ddprun_buffer* array);
ddprun_status ddprun_job_keep_state(ddprun_job* job, const char* name, ddprun_save_state save,
                                    ddprun_load_state load, void* user);
/* --- elastic/sharded.h --- */

typedef struct ddprun_sharded ddprun_sharded; /* Belongs to the job; must not be destroyed. */

/* Writes the elements from `first` on. */
typedef int32_t (*ddprun_fill_shards)(void* user, size_t first, const ddprun_buffer* part);

typedef struct {
  size_t size;
  size_t count;            /* Elements, of all ranks together. */
  ddprun_fill_shards fill; /* NULL: all are 0. */
  void* user;              /* The first argument of `fill`. */
  ddprun_type type;
  int32_t shards; /* Fixed for the run; at least the largest number of ranks. */
} ddprun_sharded_options;

/* State of which every rank has a part, and one other rank a copy. */
ddprun_status ddprun_job_keep_sharded(ddprun_job* job, const char* name,
                                      const ddprun_sharded_options* options,
                                      ddprun_sharded** sharded);
/* This rank's part, from element *first on: _now as of the last committed step, read-only; _next as
   it will be after this step, to be written. In bodies of steps and between them. `first` may be
   NULL. */
ddprun_status ddprun_sharded_now(ddprun_sharded* sharded, size_t* first, ddprun_buffer* part);
ddprun_status ddprun_sharded_next(ddprun_sharded* sharded, size_t* first, ddprun_buffer* part);
/* All elements of all ranks, as of now or of next, into `whole`. Collective. */
ddprun_status ddprun_sharded_gather(ddprun_sharded* sharded, ddprun_group* group,
                                    const ddprun_buffer* whole);
ddprun_status ddprun_sharded_gather_next(ddprun_sharded* sharded, ddprun_group* group,
                                         const ddprun_buffer* whole);

ddprun_status ddprun_job_resume(ddprun_job* job, int64_t step);
ddprun_status ddprun_job_between(ddprun_job* job, int64_t every, ddprun_between body, void* user);
/* Calls body(step, user) for each step until `steps`, 0 or more, are committed, by all ranks. */
ddprun_status ddprun_job_run(ddprun_job* job, int64_t steps, ddprun_step_body body, void* user);
int64_t ddprun_job_committed(const ddprun_job* job); /* Steps. */
/* In the round that this process is in, or was in last: after ddprun_job_run(), too. -1 and 0
   before the first. */
int ddprun_job_rank(const ddprun_job* job);
int ddprun_job_world_size(const ddprun_job* job);
ddprun_status ddprun_job_counters_of(const ddprun_job* job, ddprun_job_counters* counters);

int64_t ddprun_step_number(const ddprun_step* step);
int ddprun_step_is_repeated(const ddprun_step* step);
int ddprun_step_round(const ddprun_step* step);
/* The ranks of this round. Belongs to the step: must not be destroyed, nor used after the step.
   Ends the shard of ddprun_step_begin_shard(), so call it again after that. */
ddprun_group* ddprun_step_group(ddprun_step* step);
/* This rank's shards of the step: *first .. *first + *count - 1, of those of `batches` or, if that
   is NULL, of `shards`; Step::shards. `weights`: the work in each of all shards, as
   JobOptions::shard_weight returns it; NULL: its samples, or 1. */
ddprun_status ddprun_step_shards(ddprun_step* step, const ddprun_batches* batches, int shards,
                                 const double* weights, int* first, int* count);
/* This rank computes `shard` of the step from now on, so that the launcher can name it if the
   process fails. *skipped is 1 if the shard must be skipped, see ddprun_job_options. `content`, a
   description of the shard, may be NULL. Once the round is over, this and ddprun_step_samples()
   return DDPRUN_MEMBERSHIP_CHANGED. */
ddprun_status ddprun_step_begin_shard(ddprun_step* step, int shard, const char* content,
                                      int* skipped);
/* 1 or 0: whether *skipped would be 1; the same on all ranks. */
int ddprun_step_skips(const ddprun_step* step, int shard);
/* ddprun_step_begin_shard() and the samples of the shard: none if it is to be skipped. Valid until
   this thread's next call of it. */
ddprun_status ddprun_step_samples(ddprun_step* step, const ddprun_batches* batches, int shard,
                                  const ddprun_sample** samples, size_t* count);
/* Step::audits: shards of other ranks that this rank computes as well, without adding them to its
   result. Valid until this thread's next call of it. */
ddprun_status ddprun_step_audits(ddprun_step* step, const int32_t** shards, size_t* count);
/* 1 or 0: whether two ranks compute the shard, and pass what they have found to
   ddprun_step_audit(). */
int ddprun_step_is_audited(const ddprun_step* step, int shard);
/* `hash`: of what this rank has computed for the shard, such as that of ddprun_sums_hash(). */
ddprun_status ddprun_step_audit(ddprun_step* step, int shard, uint64_t hash);
/* Step::capture: a bundle for `ddprun replay` of this step and shard, -1: the one in progress,
   before the step is reduced or the body returns. `hash`: as of ddprun_step_audit(), or 0. For a
   body that is about to return a failure of its own, with the failure's text. */
ddprun_status ddprun_step_capture(ddprun_step* step, int shard, const char* why, uint64_t hash);
/* Ends the step: calls apply(user), which changes the kept state; `apply` may be NULL. Within
   apply(), this and calls of any group return DDPRUN_BAD_ARGUMENT. */
ddprun_status ddprun_step_commit(ddprun_step* step, ddprun_apply apply, void* user);
/* ddprun_sums_reduce() over the ranks of the step, which carries what ddprun_step_commit() would
   need a reduction for; Step::reduce. */
ddprun_status ddprun_step_reduce(ddprun_step* step, ddprun_sums* sums, float* const* gradients,
                                 double divide_by, int64_t note, ddprun_sum_result* result);
/* Step::vote and Step::voted: for another reduction that carries one more number. */
ddprun_status ddprun_step_vote(ddprun_step* step, int32_t* vote);
ddprun_status ddprun_step_voted(ddprun_step* step, int leave);

#ifdef __cplusplus
}
#endif

#endif
