#ifndef DDPRUN_C_CHECKPOINT_H
#define DDPRUN_C_CHECKPOINT_H
/* Checkpoints that all ranks write together, and any number of ranks can read. checkpoint.h
   documents the C++ counterparts. Include ddprun/c_api.h. */

#include "ddprun/c/c_base.h"
#include "ddprun/c/c_group.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ddprun_checkpoint_writer ddprun_checkpoint_writer;
typedef struct ddprun_checkpoint ddprun_checkpoint;

/* All or part of an array, as one rank saves it. */
typedef struct {
  size_t size;
  const char* name; /* Of the array. Copied. */
  void* data;       /* Host memory. Copied before the call returns. */
  size_t count;
  size_t offset; /* Of the part in the array, in elements. */
  size_t total;  /* Elements of the array; 0: the part is all of it. */
  ddprun_type type;
  int32_t reserved; /* 0. */
} ddprun_checkpoint_piece;

/* Where checkpoints are. Texts are copied by the functions that take one. */
typedef struct {
  size_t size;
  const char* folder;
  const char* copies; /* If not shared: of other hosts' files; NULL: there is none. */
  const char* within; /* Of that, below each host's folder. */
  int32_t shared;     /* 1: all hosts see the same folder; 0: each has one of that name. */
  int32_t reserved;   /* 0. */
} ddprun_checkpoint_place;

/* 1: the run has a memory folder (ddprun --memory-folder SIZE). */
int32_t ddprun_has_memory_folder(void);
/* Fills *place, whose size the caller has set, with the place `name` (NULL: "checkpoints") in this
   host's memory folder; its texts are valid until this thread's next call of it.
   DDPRUN_BAD_ENVIRONMENT: the run has none. */
ddprun_status ddprun_checkpoint_in_memory(const char* name, ddprun_checkpoint_place* place);
/* As ddprun_checkpoint_writer_create(). `keep` is 2 if it is 0 and the place is not shared. */
ddprun_status ddprun_checkpoint_writer_create_at(ddprun_group* group,
                                                 const ddprun_checkpoint_place* place, int keep,
                                                 ddprun_checkpoint_writer** writer);
/* *path is that of the complete checkpoint of the highest step in any of `count` places, of equal
   ones in the first, or NULL; valid until this thread's next call of it. Collective: what this host
   lacks of it is fetched from others. */
ddprun_status ddprun_checkpoint_latest_of(ddprun_group* group,
                                          const ddprun_checkpoint_place* places, size_t count,
                                          const char** path);

/* `keep`: how many complete checkpoints stay in the folder; 0: all. */
ddprun_status ddprun_checkpoint_writer_create(ddprun_group* group, const char* folder, int keep,
                                              ddprun_checkpoint_writer** writer);
void ddprun_checkpoint_writer_destroy(ddprun_checkpoint_writer* writer); /* Waits. */
/* Collective. Returns while a thread of the library writes. */
ddprun_status ddprun_checkpoint_save_async(ddprun_checkpoint_writer* writer, int64_t step,
                                           const ddprun_checkpoint_piece* pieces, size_t count);
/* Until the checkpoint is complete: rank 0 finds what all ranks have written. Collective. */
ddprun_status ddprun_checkpoint_wait(ddprun_checkpoint_writer* writer);

/* *path is that of the newest complete checkpoint in `folder`, or NULL if there is none; valid
   until this thread's next call of it. `group`: NULL, or collective: rank 0 reads the folder. If a
   call with this checkpoint then fails and *path is another one now, ranks that train have removed
   it (`keep`) for a newer one: load that. */
ddprun_status ddprun_checkpoint_latest(ddprun_group* group, const char* folder, const char** path);

/* This and the following functions can be called from any thread. */
ddprun_status ddprun_checkpoint_open(const char* path, ddprun_checkpoint** checkpoint);
void ddprun_checkpoint_destroy(ddprun_checkpoint* checkpoint);
int64_t ddprun_checkpoint_step(const ddprun_checkpoint* checkpoint);
int ddprun_checkpoint_world_size(const ddprun_checkpoint* checkpoint); /* Of the saving job. */
int64_t ddprun_checkpoint_arrays(const ddprun_checkpoint* checkpoint); /* Their number. */
/* Array `i` of them; the name is the checkpoint's. */
ddprun_status ddprun_checkpoint_array(const ddprun_checkpoint* checkpoint, size_t i,
                                      const char** name, ddprun_type* type, size_t* count);
/* Fills `out` with elements of an array from `offset` on, and verifies their checksums. */
ddprun_status ddprun_checkpoint_read(const ddprun_checkpoint* checkpoint, const char* name,
                                     const ddprun_buffer* out, size_t offset);

#ifdef __cplusplus
}
#endif

#endif
