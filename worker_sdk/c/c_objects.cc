// ddprun/c/c_collectives.h: bytes whose number only the sender knows.

#include "ddprun/objects.h"
#include "worker_sdk/c/c_api.h"

using namespace ddprun;
using namespace ddprun::worker_sdk;

namespace {

// What this thread's last call returned.
struct Kept {
  std::string bytes;
  std::vector<std::size_t> counts;
};

Kept& kept() {
  thread_local Kept one;
  return one;
}

std::string_view bytes_of(const void* bytes, std::size_t count) {
  require_argument(bytes || count == 0, "the bytes are null");
  return {static_cast<const char*>(bytes), count};
}

void lend(const std::vector<std::string>& each, const void** all, const std::size_t** counts) {
  Kept& mine = kept();
  mine = {};
  for (const std::string& one : each) {
    mine.bytes += one;
    mine.counts.push_back(one.size());
  }
  *all = each.empty() ? nullptr : mine.bytes.data();
  *counts = each.empty() ? nullptr : mine.counts.data();
}

}  // namespace

extern "C" {

ddprun_status ddprun_broadcast_bytes(ddprun_group* group, const void* bytes, size_t count, int root,
                                     const void** all, size_t* all_count) {
  return guarded([&] {
    require_argument(all && all_count, "a pointer is null");
    const bool sends = live(group).group.rank() == root;
    const auto mine = sends ? bytes_of(bytes, count) : std::string_view();
    kept() = {broadcast_bytes(group->group, mine, root), {}};
    *all = kept().bytes.data();
    *all_count = kept().bytes.size();
  });
}

ddprun_status ddprun_all_gather_bytes(ddprun_group* group, const void* bytes, size_t count,
                                      const void** all, const size_t** counts) {
  return guarded([&] {
    require_argument(all && counts, "a pointer is null");
    lend(all_gather_bytes(live(group).group, bytes_of(bytes, count)), all, counts);
  });
}

ddprun_status ddprun_gather_bytes(ddprun_group* group, const void* bytes, size_t count, int root,
                                  const void** all, const size_t** counts) {
  return guarded([&] {
    require_argument(all && counts, "a pointer is null");
    lend(gather_bytes(live(group).group, bytes_of(bytes, count), root), all, counts);
  });
}

}  // extern "C"
