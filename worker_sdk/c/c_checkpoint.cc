// ddprun/c/c_checkpoint.h: checkpoints.

#include "ddprun/checkpoint.h"
#include "worker_sdk/c/c_handles.h"

using namespace ddprun;
using namespace ddprun::worker_sdk;

struct ddprun_checkpoint_writer {
  CheckpointWriter writer;
};
struct ddprun_checkpoint {
  Checkpoint checkpoint;
};

namespace {

static_assert(kGrows<ddprun_checkpoint_piece>);
static_assert(kGrows<ddprun_checkpoint_place>);

CheckpointPlace place_of(const ddprun_checkpoint_place* places, std::size_t i) {
  require_argument(places, "the pointer to a place is null");
  const ddprun_checkpoint_place p = struct_of(places, i);
  require_argument(p.folder, "the folder of a place is null");
  return {.folder = p.folder,
          .shared = p.shared != 0,
          .copies = p.copies ? p.copies : "",
          .within = p.within ? p.within : ""};
}

std::vector<CheckpointPiece> pieces_of(const ddprun_checkpoint_piece* pieces, std::size_t count) {
  std::vector<CheckpointPiece> result;
  for (std::size_t i = 0; i < count; ++i) {
    const ddprun_checkpoint_piece p = struct_of(pieces, i);
    require_argument(p.name, "the name of an array is null");
    const ddprun_buffer part{sizeof part, p.data, p.count, p.type, p.reserved};
    result.push_back({p.name, buffer_of(&part), p.offset, p.total});
  }
  return result;
}

}  // namespace

extern "C" {

ddprun_status ddprun_checkpoint_writer_create(ddprun_group* group, const char* folder, int keep,
                                              ddprun_checkpoint_writer** writer) {
  return guarded([&] {
    require_argument(group && folder && writer, "a pointer is null");
    *writer = nullptr;
    *writer = new ddprun_checkpoint_writer{{group->group, folder, {.keep = keep}}};
  });
}

int32_t ddprun_has_memory_folder(void) { return has_memory_folder() ? 1 : 0; }

ddprun_status ddprun_checkpoint_in_memory(const char* name, ddprun_checkpoint_place* place) {
  return guarded([&] {
    thread_local CheckpointPlace kept;
    require_argument(place, "the pointer to the place is null");
    kept = name ? in_memory(name) : in_memory();
    fill(place, {sizeof *place, kept.folder.c_str(), kept.copies.c_str(), kept.within.c_str(),
                 kept.shared ? 1 : 0, 0});
  });
}

ddprun_status ddprun_checkpoint_writer_create_at(ddprun_group* group,
                                                 const ddprun_checkpoint_place* place, int keep,
                                                 ddprun_checkpoint_writer** writer) {
  return guarded([&] {
    require_argument(group && writer, "a pointer is null");
    *writer = nullptr;
    *writer = new ddprun_checkpoint_writer{{group->group, place_of(place, 0), {.keep = keep}}};
  });
}

ddprun_status ddprun_checkpoint_latest_of(ddprun_group* group,
                                          const ddprun_checkpoint_place* places, size_t count,
                                          const char** path) {
  return guarded([&] {
    thread_local std::string kept;
    require_argument(group && path, "a pointer is null");
    *path = nullptr;
    std::vector<CheckpointPlace> all;
    for (std::size_t i = 0; i < count; ++i) all.push_back(place_of(places, i));
    const auto found = latest_checkpoint(group->group, all);
    if (!found) return;
    kept = *found;
    *path = kept.c_str();
  });
}

void ddprun_checkpoint_writer_destroy(ddprun_checkpoint_writer* writer) { delete writer; }

ddprun_status ddprun_checkpoint_save_async(ddprun_checkpoint_writer* writer, int64_t step,
                                           const ddprun_checkpoint_piece* pieces, size_t count) {
  return guarded([&] { live(writer).writer.save_async(step, pieces_of(pieces, count)); });
}

ddprun_status ddprun_checkpoint_wait(ddprun_checkpoint_writer* writer) {
  return guarded([&] { live(writer).writer.wait(); });
}

ddprun_status ddprun_checkpoint_latest(ddprun_group* group, const char* folder, const char** path) {
  return guarded([&] {
    thread_local std::string kept;
    require_argument(folder && path, "a pointer is null");
    *path = nullptr;
    const auto found = group ? latest_checkpoint(group->group, folder) : latest_checkpoint(folder);
    if (!found) return;
    kept = *found;
    *path = kept.c_str();
  });
}

ddprun_status ddprun_checkpoint_open(const char* path, ddprun_checkpoint** checkpoint) {
  return guarded([&] {
    require_argument(path && checkpoint, "a pointer is null");
    *checkpoint = nullptr;
    *checkpoint = new ddprun_checkpoint{Checkpoint(path)};
  });
}

void ddprun_checkpoint_destroy(ddprun_checkpoint* checkpoint) { delete checkpoint; }

int64_t ddprun_checkpoint_step(const ddprun_checkpoint* checkpoint) {
  return answer<int64_t>(-1, [&] { return live(checkpoint).checkpoint.step(); });
}
int ddprun_checkpoint_world_size(const ddprun_checkpoint* checkpoint) {
  return answer(-1, [&] { return live(checkpoint).checkpoint.world_size(); });
}
int64_t ddprun_checkpoint_arrays(const ddprun_checkpoint* checkpoint) {
  return answer<int64_t>(
      -1, [&] { return static_cast<int64_t>(live(checkpoint).checkpoint.arrays().size()); });
}

ddprun_status ddprun_checkpoint_array(const ddprun_checkpoint* checkpoint, size_t i,
                                      const char** name, ddprun_type* type, size_t* count) {
  return guarded([&] {
    require_argument(name && type && count, "a pointer is null");
    const auto& arrays = live(checkpoint).checkpoint.arrays();
    require_argument(i < arrays.size(), "there is no such array");
    *name = arrays[i].name.c_str();
    *type = static_cast<ddprun_type>(arrays[i].type);
    *count = arrays[i].count;
  });
}

ddprun_status ddprun_checkpoint_read(const ddprun_checkpoint* checkpoint, const char* name,
                                     const ddprun_buffer* out, size_t offset) {
  return guarded([&] {
    require_argument(name, "the name is null");
    live(checkpoint).checkpoint.read(name, buffer_of(out), offset);
  });
}

}  // extern "C"
