// What code compiled with -fsanitize=thread calls before each access to memory. The sanitizer's own
// library is not linked: atomic accesses of watched memory become the model's, others are noted for
// its search for races, and whatever else there is is carried out as usual. The linker sends calls
// of syscall() and memcpy() here, too (--wrap).

#include <linux/futex.h>
#include <sys/syscall.h>

#include <cstdarg>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "tests/orders/explorer.h"

using ddprun::orders::Access;
using ddprun::orders::carry_out;
using ddprun::orders::is_watched;
using ddprun::orders::note_plain;

namespace {

template <class T>
T carry_out(Access::Kind kind, const volatile T* at, T value, int order, T expected = T{}) {
  return static_cast<T>(carry_out(Access{.kind = kind,
                                         .address = reinterpret_cast<std::uintptr_t>(at),
                                         .bytes = sizeof(T),
                                         .order = order,
                                         .value = value,
                                         .expected = expected}));
}

// Of long ranges only the ends: each rank's part of an array begins where another one's ends.
void note_range(const void* at, std::size_t bytes, bool writes) {
  constexpr std::size_t kShort = 1024, kEnd = 64;
  if (bytes <= kShort) return note_plain(at, bytes, writes);
  note_plain(at, kEnd, writes);
  note_plain(static_cast<const char*>(at) + bytes - kEnd, kEnd, writes);
}

bool is_watched_word(const volatile void* at) { return is_watched(const_cast<const void*>(at)); }

template <class T>
int compare_exchange(volatile T* at, T* expected, T value, int order) {
  if (!is_watched_word(at)) {
    return __atomic_compare_exchange_n(at, expected, value, false, __ATOMIC_SEQ_CST,
                                       __ATOMIC_SEQ_CST);
  }
  const T found = carry_out<T>(Access::kCompareExchange, at, value, order, *expected);
  const bool same = found == *expected;
  *expected = found;
  return same;
}

}  // namespace

extern "C" {

void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}

#define PLAIN(bytes)                                                            \
  void __tsan_read##bytes(void* at) { note_plain(at, bytes, false); }           \
  void __tsan_write##bytes(void* at) { note_plain(at, bytes, true); }           \
  void __tsan_unaligned_read##bytes(void* at) { note_plain(at, bytes, false); } \
  void __tsan_unaligned_write##bytes(void* at) { note_plain(at, bytes, true); }
PLAIN(1)
PLAIN(2) PLAIN(4) PLAIN(8) PLAIN(16)
#undef PLAIN

    void __tsan_read_range(void* at, std::size_t bytes) {
  note_plain(at, bytes, false);
}
void __tsan_write_range(void* at, std::size_t bytes) { note_plain(at, bytes, true); }

#define CHANGE(bits, T, name, kind, usual)                                        \
  T __tsan_atomic##bits##_##name(volatile T* at, T value, int order) {            \
    if (is_watched_word(at)) return carry_out<T>(Access::kind, at, value, order); \
    return usual(at, value, __ATOMIC_SEQ_CST);                                    \
  }
#define ATOMIC(bits, T)                                                                            \
  T __tsan_atomic##bits##_load(const volatile T* at, int order) {                                  \
    if (is_watched_word(at)) return carry_out<T>(Access::kLoad, at, T{}, order);                   \
    return __atomic_load_n(at, __ATOMIC_SEQ_CST);                                                  \
  }                                                                                                \
  void __tsan_atomic##bits##_store(volatile T* at, T value, int order) {                           \
    if (!is_watched_word(at)) return __atomic_store_n(at, value, __ATOMIC_SEQ_CST);                \
    carry_out<T>(Access::kStore, at, value, order);                                                \
  }                                                                                                \
  CHANGE(bits, T, exchange, kExchange, __atomic_exchange_n)                                        \
  CHANGE(bits, T, fetch_add, kAdd, __atomic_fetch_add)                                             \
  CHANGE(bits, T, fetch_sub, kSubtract, __atomic_fetch_sub)                                        \
  CHANGE(bits, T, fetch_or, kOr, __atomic_fetch_or)                                                \
  CHANGE(bits, T, fetch_and, kAnd, __atomic_fetch_and)                                             \
  int __tsan_atomic##bits##_compare_exchange_strong(volatile T* at, T* expected, T value,          \
                                                    int order, int) {                              \
    return compare_exchange(at, expected, value, order);                                           \
  }                                                                                                \
  int __tsan_atomic##bits##_compare_exchange_weak(volatile T* at, T* expected, T value, int order, \
                                                  int) {                                           \
    return compare_exchange(at, expected, value, order);                                           \
  }
ATOMIC(8, std::uint8_t)
ATOMIC(16, std::uint16_t)
ATOMIC(32, std::uint32_t)
ATOMIC(64, std::uint64_t)
#undef ATOMIC
#undef CHANGE

void __tsan_atomic_thread_fence(int order) { ddprun::orders::carry_out_fence(order); }
void __tsan_atomic_signal_fence(int) {}

void* __real_memcpy(void* to, const void* from, std::size_t bytes);
void* __wrap_memcpy(void* to, const void* from, std::size_t bytes) {
  note_range(from, bytes, false);
  note_range(to, bytes, true);
  return __real_memcpy(to, from, bytes);
}

long __real_syscall(long number, long a, long b, long c, long d, long e, long f);
long __wrap_syscall(long number, long a, long b, long c, long d, long e, long f) {
  const auto* word = reinterpret_cast<const std::uint32_t*>(a);
  if (number != SYS_futex || !is_watched(word)) return __real_syscall(number, a, b, c, d, e, f);
  const bool waits = b == FUTEX_WAIT;
  const auto seen = static_cast<std::uint32_t>(c);
  carry_out<std::uint32_t>(waits ? Access::kWait : Access::kWake, word, waits ? seen : 0,
                           __ATOMIC_RELAXED);
  return 0;
}

}  // extern "C"
