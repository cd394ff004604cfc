#include "worker_sdk/transport/backend.h"

#include <cstring>
#include <new>

namespace ddprun::worker_sdk {

std::shared_ptr<void> allocate_plain(std::size_t bytes) {
  constexpr std::align_val_t alignment{kAlignment};
  void* memory = ::operator new(bytes == 0 ? 1 : bytes, alignment);
  std::memset(memory, 0, bytes);
  return {memory, [](void* p) { ::operator delete(p, alignment); }};
}

void SelfBackend::refuse_if_aborted(const Call& call) const {
  if (aborted_.load()) {
    throw failure(*roster_, call, ErrorKind::aborted, -1, "this rank called abort()");
  }
}

void SelfBackend::carry_out(const Call& call, const Arrays& arrays) {
  const Buffer in = arrays.in_part(0, arrays.in.count), out = arrays.out_part(0, arrays.out.count);
  if (is_message(call.what.kind)) {
    throw failure(*roster_, call, ErrorKind::unsupported, -1, "a world of one has no peer");
  }
  refuse_if_aborted(call);
  if (in.data != out.data && in.bytes() > 0) std::memmove(out.data, in.data, in.bytes());
}

std::shared_ptr<void> SelfBackend::allocate(const Call& call, std::size_t bytes) {
  refuse_if_aborted(call);
  return allocate_plain(bytes);
}

}  // namespace ddprun::worker_sdk
