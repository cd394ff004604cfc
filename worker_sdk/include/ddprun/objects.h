#pragma once
// Exchanges small objects between ranks: bytes whose length only the sender knows, such as a name,
// JSON or a serialised state. Counterparts of torch.distributed's broadcast_object_list,
// gather_object and all_gather_object, without pickling.
//
//   const std::string config = ddprun::broadcast_bytes(group, read_config_on_rank_0, 0);
//
// All calls are collective, take part in the order of the group's collectives, must come from the
// thread that uses the group, and throw Error as collectives do. Intended for kilobytes; a rank
// must not send more than kObjectBytesMax.

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "ddprun/process_group.h"

namespace ddprun {

constexpr std::size_t kObjectBytesMax = std::size_t{1} << 30;

/// Returns the root's `bytes` on every rank; the argument of other ranks is ignored.
std::string broadcast_bytes(ProcessGroup& group, std::string_view bytes, int root = 0);

/// Returns the bytes of each rank, by rank. Lengths may differ or be 0.
std::vector<std::string> all_gather_bytes(ProcessGroup& group, std::string_view bytes);

/// The same on the root only; returns an empty vector on other ranks.
std::vector<std::string> gather_bytes(ProcessGroup& group, std::string_view bytes, int root = 0);

}  // namespace ddprun
