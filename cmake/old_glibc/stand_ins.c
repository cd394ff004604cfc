// What this machine's headers and static libraries call of the C library that an older one does not
// have: linked by cmake/old_glibc.cmake into programs and libraries, and seen by none outside. The
// two whose replacement is worse than the original use the original where the C library has it.
//
// If a program does not link any more because "undefined reference to `NAME'", NAME is newer than
// the glibc for which it is linked: call something else, or add NAME here.

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <link.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#pragma GCC visibility push(hidden)

// 2.32. Never true: threads are counted by nobody here, so reference counts are always atomic.
char __libc_single_threaded = 0;

// 2.30
pid_t gettid(void) { return (pid_t)syscall(SYS_gettid); }

// 2.33. Before that the headers had them call functions whose first argument was a version.
int fstat(int file, struct stat* status) { return (int)syscall(SYS_fstat, file, status); }

int stat(const char* path, struct stat* status) {
  return (int)syscall(SYS_newfstatat, AT_FDCWD, path, status, 0);
}

int lstat(const char* path, struct stat* status) {
  return (int)syscall(SYS_newfstatat, AT_FDCWD, path, status, AT_SYMLINK_NOFOLLOW);
}

int fstatat(int folder, const char* path, struct stat* status, int flags) {
  return (int)syscall(SYS_newfstatat, folder, path, status, flags);
}

int fstat64(int file, struct stat64* status) { return (int)syscall(SYS_fstat, file, status); }

// 2.36. getrandom() waits until the kernel has random numbers; then so few bytes never fail.
uint32_t arc4random(void) {
  uint32_t number;
  while (getrandom(&number, sizeof number, 0) != sizeof number) {
    if (errno != EINTR) abort();
  }
  return number;
}

// 2.32
const char* sigabbrev_np(int signal) {
  static const char* const kNames[] = {
      [SIGHUP] = "HUP",   [SIGINT] = "INT",       [SIGQUIT] = "QUIT",     [SIGILL] = "ILL",
      [SIGTRAP] = "TRAP", [SIGABRT] = "ABRT",     [SIGBUS] = "BUS",       [SIGFPE] = "FPE",
      [SIGKILL] = "KILL", [SIGUSR1] = "USR1",     [SIGSEGV] = "SEGV",     [SIGUSR2] = "USR2",
      [SIGPIPE] = "PIPE", [SIGALRM] = "ALRM",     [SIGTERM] = "TERM",     [SIGSTKFLT] = "STKFLT",
      [SIGCHLD] = "CHLD", [SIGCONT] = "CONT",     [SIGSTOP] = "STOP",     [SIGTSTP] = "TSTP",
      [SIGTTIN] = "TTIN", [SIGTTOU] = "TTOU",     [SIGURG] = "URG",       [SIGXCPU] = "XCPU",
      [SIGXFSZ] = "XFSZ", [SIGVTALRM] = "VTALRM", [SIGPROF] = "PROF",     [SIGWINCH] = "WINCH",
      [SIGIO] = "POLL",   [SIGPWR] = "PWR",       [SIGSYS] = "SYS",
  };
  const int count = sizeof kNames / sizeof *kNames;
  return signal > 0 && signal < count ? kNames[signal] : NULL;
}

// 2.30, for std::condition_variable with steady_clock.

typedef int ClockWait(pthread_cond_t*, pthread_mutex_t*, clockid_t, const struct timespec*);
static ClockWait* original_clockwait;

__attribute__((constructor)) static void find_clockwait(void) {
  original_clockwait = (ClockWait*)dlsym(RTLD_DEFAULT, "pthread_cond_clockwait");
}

// The wait of an older one is by the wall clock, which may be set meanwhile: at most this long at a
// time, after which the caller, as after any wait, looks at the clock and at its condition again.
enum { kWaitSeconds = 1, kNanosecondsPerSecond = 1000000000 };

int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock,
                           const struct timespec* until) {
  if (original_clockwait) return original_clockwait(condition, mutex, clock, until);
  struct timespec now, wall;
  if (clock_gettime(clock, &now) != 0 || clock_gettime(CLOCK_REALTIME, &wall) != 0) return EINVAL;
  int64_t seconds = (int64_t)until->tv_sec - now.tv_sec;
  int64_t nanoseconds = (int64_t)until->tv_nsec - now.tv_nsec;
  if (nanoseconds < 0) seconds -= 1, nanoseconds += kNanosecondsPerSecond;
  if (seconds < 0) seconds = 0, nanoseconds = 0;
  const int is_whole = seconds < kWaitSeconds;
  if (!is_whole) seconds = kWaitSeconds, nanoseconds = 0;
  wall.tv_sec += seconds, wall.tv_nsec += nanoseconds;
  if (wall.tv_nsec >= kNanosecondsPerSecond) wall.tv_sec += 1, wall.tv_nsec -= kNanosecondsPerSecond;
  const int outcome = pthread_cond_timedwait(condition, mutex, &wall);
  return outcome == ETIMEDOUT && !is_whole ? 0 : outcome;
}

// 2.35: where exceptions find the tables of the code that they leave. The original takes no lock.

typedef int FindObject(void*, struct dl_find_object*);
static FindObject* original_find_object;

__attribute__((constructor)) static void find_find_object(void) {
  original_find_object = (FindObject*)dlsym(RTLD_DEFAULT, "_dl_find_object");
}

struct Search {
  uintptr_t address;
  struct dl_find_object* found;
};

// Ends the iteration, by 1 or 2, as it comes to the object with the address; by 1 if it has tables.
static int has_address(struct dl_phdr_info* object, size_t size, void* of_search) {
  (void)size;
  const struct Search* search = of_search;
  uintptr_t begin = UINTPTR_MAX, end = 0, tables = 0;
  int is_here = 0;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)* part = &object->dlpi_phdr[i];
    const uintptr_t from = object->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_GNU_EH_FRAME) tables = from;
    if (part->p_type != PT_LOAD) continue;
    if (search->address - from < part->p_memsz) is_here = 1;
    if (from < begin) begin = from;
    if (from + part->p_memsz > end) end = from + part->p_memsz;
  }
  if (!is_here) return 0;
  memset(search->found, 0, sizeof *search->found);
  search->found->dlfo_map_start = (void*)begin;
  search->found->dlfo_map_end = (void*)end;
  search->found->dlfo_eh_frame = (void*)tables;
  return tables != 0 ? 1 : 2;
}

int _dl_find_object(void* address, struct dl_find_object* found) {
  if (original_find_object) return original_find_object(address, found);
  struct Search search = {(uintptr_t)address, found};
  return dl_iterate_phdr(has_address, &search) == 1 ? 0 : -1;
}
