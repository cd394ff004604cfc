#pragma once
// Small objects between ranks: bytes whose length only their sender knows, such as a name, a piece
// of JSON or a serialised state. The twins of torch.distributed's broadcast_object_list,
// gather_object and all_gather_object, without the pickling.
//
//   const std::string config = ddprun::broadcast_bytes(group, read_config_on_rank_0, 0);
//
// All are collective: every rank calls, in the same order as its other collectives, from the thread
// that uses the group. They throw Error as collectives do. Meant for kilobytes; what a rank sends
// must not exceed kObjectBytesMax.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "ddprun/process_group.h"

namespace ddprun {

constexpr std::size_t kObjectBytesMax = std::size_t{1} << 30;

/// The root's `bytes`, on every rank; what the others pass is not looked at.
std::string broadcast_bytes(ProcessGroup& group, std::string_view bytes, int root = 0);

/// What each rank passed, by rank. Lengths may differ, or be 0.
std::vector<std::string> all_gather_bytes(ProcessGroup& group, std::string_view bytes);

/// The same for the root alone; the others get nothing.
std::vector<std::string> gather_bytes(ProcessGroup& group, std::string_view bytes, int root = 0);

}  // namespace ddprun
