#pragma once
// Numbers by which Gloo's ranks match their messages. Only gloo_backend*.cc include this.

#include <cstdint>
#include <initializer_list>

#include "worker_sdk/base/operation.h"

namespace ddprun::worker_sdk {

// FNV-1a: stable between builds, unlike std::hash.
inline std::uint32_t tag_of(std::initializer_list<std::uint64_t> fields) {
  std::uint32_t hash = 2166136261u;
  for (std::uint64_t field : fields) {
    for (int i = 0; i < 8; ++i, field >>= 8) hash = (hash ^ (field & 0xff)) * 16777619u;
  }
  return hash;
}

inline std::uint32_t tag_of(const Call& call) {
  return tag_of(
      {static_cast<std::uint64_t>(call.what.kind), static_cast<std::uint64_t>(call.what.type),
       static_cast<std::uint64_t>(call.what.op), static_cast<std::uint64_t>(call.what.rank),
       call.what.count, call.what.parts, call.number});
}

// Ours are in a part of Gloo's slots that no collective of its own uses.
inline std::uint64_t message_slot(const Call& call, int from, int to, std::uint32_t number) {
  constexpr std::uint64_t kPointToPoint = 0x70;
  const std::uint32_t tag =
      tag_of({static_cast<std::uint64_t>(from), static_cast<std::uint64_t>(to), number,
              static_cast<std::uint64_t>(call.what.type), call.what.count});
  return kPointToPoint << 56 | std::uint64_t{tag} << 24;
}

inline std::uint64_t collective_slot(const Call& call) {
  constexpr std::uint64_t kCollective = 0x71;
  return kCollective << 56 | std::uint64_t{tag_of(call)} << 24;
}

}  // namespace ddprun::worker_sdk
