#pragma once
// Low descriptor numbers for a child's streams, and the system calls that a child makes before it
// is another program.

#include <linux/sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstddef>
#include <vector>

#include "common/system/descriptors.h"

// System calls without the C library, for a child that runs in our memory beside us: the library's
// errno is the parent's. For child_start.cc.

// The child runs in our memory: sanitizers would take what it does for our own doing.
#define DDPRUN_IN_CHILD __attribute__((no_sanitize("address", "thread", "undefined")))

namespace ddprun::agent {

// Low numbers in our table of descriptors, through which the ends of a worker's streams and link
// reach it. A child shares our table at first, puts its ends there, and takes with it only what
// lies below table_end(): however many descriptors we keep for the workers that live already, none
// of them has to be copied and closed for the next. Owned by Spawner.
#if defined(__x86_64__) || defined(__aarch64__)
inline constexpr bool kHasRawCalls = true;
#else
inline constexpr bool kHasRawCalls = false;  // The parent has to be suspended meanwhile.
#endif

// What the kernel answers: below 0 it is -errno.
DDPRUN_IN_CHILD inline long raw_call(long number, long a = 0, long b = 0, long c = 0, long d = 0) {
#if defined(__x86_64__)
  long outcome;
  register long fourth asm("r10") = d;
  asm volatile("syscall"
               : "=a"(outcome)
               : "0"(number), "D"(a), "S"(b), "d"(c), "r"(fourth)
               : "rcx", "r11", "memory");
  return outcome;
#elif defined(__aarch64__)
  register long first asm("x0") = a;
  register long second asm("x1") = b;
  register long third asm("x2") = c;
  register long fourth asm("x3") = d;
  register long what asm("x8") = number;
  asm volatile("svc #0" : "+r"(first) : "r"(second), "r"(third), "r"(fourth), "r"(what) : "memory");
  return first;
#else
  const long outcome = ::syscall(number, a, b, c, d);
  return outcome < 0 ? -errno : outcome;
#endif
}

// clone3, which the C library does not have for programs: the child calls `run` on the stack in
// `how`, and never returns from it. The child's process id, or -errno.
#if defined(__x86_64__)
DDPRUN_IN_CHILD inline long clone3_and_run(const clone_args& how, int (*run)(void*),
                                           void* argument) {
  long outcome;
  register int (*function)(void*) asm("r12") = run;
  register void* given asm("r13") = argument;
  asm volatile(
      "syscall\n\t"
      "test %%rax, %%rax\n\t"
      "jnz 1f\n\t"
      "xor %%ebp, %%ebp\n\t"
      "mov %[given], %%rdi\n\t"
      "call *%[function]\n\t"
      "hlt\n"
      "1:"
      : "=a"(outcome)
      : "0"(static_cast<long>(SYS_clone3)), "D"(&how),
        "S"(sizeof how), [function] "r"(function), [given] "r"(given)
      : "rcx", "r11", "memory");
  return outcome;
}
#elif defined(__aarch64__)
DDPRUN_IN_CHILD inline long clone3_and_run(const clone_args& how, int (*run)(void*),
                                           void* argument) {
  register long outcome asm("x0") = reinterpret_cast<long>(&how);
  register long size asm("x1") = sizeof how;
  register long number asm("x8") = SYS_clone3;
  register int (*function)(void*) asm("x19") = run;
  register void* given asm("x20") = argument;
  asm volatile(
      "svc #0\n\t"
      "cbnz x0, 1f\n\t"
      "mov x29, xzr\n\t"
      "mov x0, %[given]\n\t"
      "blr %[function]\n\t"
      "brk #0\n"
      "1:"
      : "+r"(outcome)
      : "r"(size), "r"(number), [function] "r"(function), [given] "r"(given)
      : "memory");
  return outcome;
}
#else
inline long clone3_and_run(const clone_args&, int (*)(void*), void*) { return -ENOSYS; }
#endif

}  // namespace ddprun::agent

namespace ddprun::agent {

class EndSlots {
 public:
  using Numbers = std::array<int, 3>;  // For standard output, standard error, link.

  // For so many children at once. There are none if the table is full, or the kernel (before 5.9)
  // or a container's filter has no close_range().
  explicit EndSlots(std::size_t children);

  // Those of one child; null: there are none, and it has to take the whole table with it.
  const Numbers* of_child(std::size_t child) const;
  unsigned table_end() const { return table_end_; }
  int null() const { return null_.get(); }  // /dev/null, below table_end(), too.

  // Closes what children have put there. No child is being started meanwhile.
  void clear() const;

  // Whether our table has room for numbers well above `number`. While it is shared, the kernel
  // would spend milliseconds on making it larger.
  bool has_room_after(int number) const { return numbers_.empty() || number + kMargin < room_; }
  // Makes it large enough, as far as its limit lets it. No child is being started meanwhile.
  void make_room_after(int number);

 private:
  static constexpr int kMargin = 64;  // A worker takes less than ten.

  UniqueFd null_;
  std::vector<UniqueFd> places_;
  std::vector<Numbers> numbers_;
  unsigned table_end_ = 0;
  int room_ = 0;  // Of our table: numbers below it fit.
};

}  // namespace ddprun::agent
