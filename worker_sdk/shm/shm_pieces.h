#pragma once
// Arrays as bytes, cut into what fits into a slot of the control segment. Only shm_backend*.cc
// include this.

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "ddprun/types.h"

namespace ddprun::worker_sdk {

inline std::byte* bytes_of(const Buffer& buffer) { return static_cast<std::byte*>(buffer.data); }

inline void copy_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memcpy(to, from, bytes);
}

// They may overlap.
inline void move_bytes(void* to, const void* from, std::size_t bytes) {
  if (bytes > 0 && to != from) std::memmove(to, from, bytes);
}

// An array cut into pieces of `piece` bytes.
struct Pieces {
  std::size_t total = 0;
  std::size_t piece = 0;

  std::size_t number() const { return (total + piece - 1) / piece; }
  std::size_t begin(std::size_t i) const { return std::min(total, i * piece); }
  std::size_t bytes(std::size_t i) const { return std::min(piece, total - begin(i)); }
};

}  // namespace ddprun::worker_sdk
