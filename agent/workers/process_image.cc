// A process as bytes, and another process that becomes what it was: how a fork server outlives its
// run (docs/notes/0003-kept-fork-server.md). A library of its own, loaded by Python
// (python/startup/ddprun_preload/_image.py), with two functions:
//
//   ddprun_image_save    writes the memory of the calling process and what the kernel keeps of it
//   ddprun_image_become  gives the calling process that memory. Its number, parent, session,
//                        limits, cgroup, descriptors and all else that an exec keeps remain its
//                        own. It goes on where save() was called, which returns a second time.
//
// Only what may be forked can be saved: one thread, no shared memory that is written. Whatever is
// not known here is refused before anything is changed. Linux on x86-64.

#include <cstddef>
#include <cstdint>
#include <cstdio>

#include "agent/workers/process_image.h"

#if defined(__x86_64__) && defined(__linux__)

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

#include "agent/workers/rseq_area.h"

// The copied code, by the linker.
extern "C" {
// NOLINTBEGIN(bugprone-reserved-identifier): the linker's names.
extern const char __start_ddprun_return[] __attribute__((visibility("hidden")));
extern const char __stop_ddprun_return[] __attribute__((visibility("hidden")));
// NOLINTEND(bugprone-reserved-identifier)
}

namespace {

using ddprun::agent::RseqArea;

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kTop = 0x7fff'ffff'f000;  // Of a process's addresses.
constexpr char kMagic[16] = "ddprun image 1";
constexpr int kSignals = 64;
constexpr std::size_t kSpecialMax = 8;  // Mappings of the kernel's: [vdso] and what belongs to it.
constexpr std::size_t kAuxvMax = 1024;
constexpr int kMembarrierRegistrations = 1 << 9;
constexpr int kShadowStackStatus = 0x5005, kXcompPermitted = 0x1022, kXcompRequest = 0x1023;
constexpr int kGetFs = 0x1003, kSetFs = 0x1002, kGetGs = 0x1004;
constexpr int kMapAll = 14;  // PR_SET_MM_MAP.

// What a function call leaves to the called; the order is that of the assembler below.
struct Context {
  std::uint64_t rbx, rbp, r12, r13, r14, r15, rsp, rip;
  std::uint32_t mxcsr;
  std::uint16_t control;
};
static_assert(offsetof(Context, rsp) == 48 && offsetof(Context, rip) == 56);
static_assert(offsetof(Context, mxcsr) == 64 && offsetof(Context, control) == 68);

struct Span {
  std::uint64_t begin, end;
  std::uint64_t bytes() const { return end - begin; }
};

struct KernelAction {
  std::uint64_t handler, flags, restorer, mask;
};

struct MemoryMap {  // As prctl(PR_SET_MM_MAP) takes it.
  std::uint64_t start_code, end_code, start_data, end_data, start_brk, brk, start_stack;
  std::uint64_t arg_start, arg_end, env_start, env_end;
  std::uint64_t auxv;
  std::uint32_t auxv_bytes;
  std::uint32_t program;
};

// A mapping. `path` is an offset in the names, 0: anonymous memory.
struct Area {
  Span at;
  std::uint64_t offset;
  std::uint32_t path;
  std::int32_t protection, flags;
  std::uint32_t advice;    // Bits of kAdvice.
  std::uint32_t has_runs;  // Its pages are not all those of the file, or empty.
  std::uint64_t device, inode, size, seconds, nanoseconds;  // Of the file.
};

// Pages that were written.
struct Run {
  std::uint64_t address, bytes, offset;
};

struct Image {
  char magic[16];
  std::uint64_t bytes;                        // Of this struct.
  std::uint64_t areas, runs, names;           // How many; of names, bytes.
  std::uint64_t areas_at, runs_at, names_at;  // In the file.
  Context context;
  MemoryMap map;
  unsigned char auxv[kAuxvMax];
  KernelAction actions[kSignals + 1];
  stack_t signal_stack;
  std::uint64_t fs_base, robust_list, robust_bytes;
  std::uint64_t rseq;
  std::uint32_t rseq_bytes;
  std::int32_t barriers;  // Registered by membarrier(2).
  std::uint64_t permitted_states;
  std::uint64_t specials;
  Span special[kSpecialMax];
  std::uint64_t room;  // Where the address of the room below is put, for the process that goes on.
};

// What the copied code works with, in memory that neither process has.
struct Plan {
  const Image* image;
  const Area* areas;
  const Run* runs;
  const char* names;
  Span room;  // This memory.
  std::uint64_t parked;
  Span special[kSpecialMax];  // Of this process.
  int file, number;
};

struct Advice {
  char flag[3];  // As /proc/self/smaps has it.
  int advice;    // As madvise takes it.
};
constexpr Advice kAdvice[] = {{"dc", MADV_DONTFORK},   {"wf", MADV_WIPEONFORK},
                              {"dd", MADV_DONTDUMP},   {"hg", MADV_HUGEPAGE},
                              {"nh", MADV_NOHUGEPAGE}, {"mg", MADV_MERGEABLE}};
// Of a driver, of huge pages, or watched by the program itself; a shadow stack.
constexpr char kRefusedFlags[][3] = {"io", "pf", "ht", "um", "uw", "ui", "ss", "sl"};

inline __attribute__((always_inline)) long kernel(long number, long a = 0, long b = 0, long c = 0,
                                                  long d = 0, long e = 0, long f = 0) {
  register long r10 __asm__("r10") = d;
  register long r8 __asm__("r8") = e;
  register long r9 __asm__("r9") = f;
  long result = number;
  __asm__ volatile("syscall"
                   : "+a"(result)
                   : "D"(a), "S"(b), "d"(c), "r"(r10), "r"(r8), "r"(r9)
                   : "rcx", "r11", "memory");
  return result;
}

inline __attribute__((always_inline)) void check(bool succeeded) {
  if (!succeeded) kernel(SYS_exit_group, kExitNotReturned);
}

inline __attribute__((always_inline)) long address(const void* pointer) {
  return reinterpret_cast<long>(pointer);
}

// From here to its end this is a copy, in memory of its own, that calls nothing and refers to
// nothing but the plan: all other memory of the process goes, and the image's comes.
__attribute__((section("ddprun_return"), noinline, used, noreturn)) void become(const Plan* plan) {
  const Image* const image = plan->image;
  // The kernel's own mappings cannot be made anew, but moved.
  for (std::uint64_t i = 0, to = plan->parked; i < image->specials; ++i) {
    const Span from = plan->special[i];
    const long moved = kernel(SYS_mremap, static_cast<long>(from.begin),
                              static_cast<long>(from.bytes()), static_cast<long>(from.bytes()),
                              MREMAP_MAYMOVE | MREMAP_FIXED, static_cast<long>(to));
    check(moved == static_cast<long>(to));
    to += from.bytes();
  }
  check(kernel(SYS_munmap, kPage, static_cast<long>(plan->room.begin - kPage)) == 0);
  check(kernel(SYS_munmap, static_cast<long>(plan->room.end),
               static_cast<long>(kTop - plan->room.end)) == 0);
  long file = -1;
  std::uint32_t open_path = 0;
  for (std::uint64_t i = 0; i < image->areas; ++i) {
    const Area& area = plan->areas[i];
    if (area.path != 0 && area.path != open_path) {
      if (file >= 0) kernel(SYS_close, file);
      file = kernel(SYS_open, address(plan->names + area.path), O_RDONLY | O_CLOEXEC);
      open_path = area.path;
      struct stat now;
      check(file >= 0 && kernel(SYS_fstat, file, address(&now)) == 0);
      check(now.st_dev == area.device && now.st_ino == area.inode &&
            static_cast<std::uint64_t>(now.st_size) == area.size &&
            static_cast<std::uint64_t>(now.st_mtim.tv_sec) == area.seconds &&
            static_cast<std::uint64_t>(now.st_mtim.tv_nsec) == area.nanoseconds);
    }
    const long made =
        kernel(SYS_mmap, static_cast<long>(area.at.begin), static_cast<long>(area.at.bytes()),
               area.protection | (area.has_runs ? PROT_WRITE : 0), area.flags | MAP_FIXED,
               area.path ? file : -1, static_cast<long>(area.offset));
    check(made == static_cast<long>(area.at.begin));
  }
  if (file >= 0) kernel(SYS_close, file);
  for (std::uint64_t i = 0; i < image->runs; ++i) {
    const Run& run = plan->runs[i];
    for (std::uint64_t done = 0; done < run.bytes;) {
      const long got =
          kernel(SYS_pread64, plan->file, static_cast<long>(run.address + done),
                 static_cast<long>(run.bytes - done), static_cast<long>(run.offset + done));
      check(got > 0);
      done += static_cast<std::uint64_t>(got);
    }
  }
  for (std::uint64_t i = 0; i < image->areas; ++i) {
    const Area& area = plan->areas[i];
    const long begin = static_cast<long>(area.at.begin), bytes = static_cast<long>(area.at.bytes());
    if (area.has_runs && (area.protection & PROT_WRITE) == 0) {
      check(kernel(SYS_mprotect, begin, bytes, area.protection) == 0);
    }
    for (std::uint32_t bits = area.advice; bits != 0; bits &= bits - 1) {
      // A number of madvise is its bit.
      check(kernel(SYS_madvise, begin, bytes, __builtin_ctz(bits)) == 0);
    }
  }
  for (std::uint64_t i = 0, from = plan->parked; i < image->specials; ++i) {
    const Span to = image->special[i];
    const long moved = kernel(SYS_mremap, static_cast<long>(from), static_cast<long>(to.bytes()),
                              static_cast<long>(to.bytes()), MREMAP_MAYMOVE | MREMAP_FIXED,
                              static_cast<long>(to.begin));
    check(moved == static_cast<long>(to.begin));
    from += to.bytes();
  }
  check(kernel(SYS_prctl, PR_SET_MM, kMapAll, address(&image->map), sizeof image->map) == 0);
  for (int signal = 1; signal <= kSignals; ++signal) {
    if (signal == SIGKILL || signal == SIGSTOP) continue;
    check(kernel(SYS_rt_sigaction, signal, address(&image->actions[signal]), 0,
                 sizeof(std::uint64_t)) == 0);
  }
  check(kernel(SYS_sigaltstack, address(&image->signal_stack), 0) == 0);
  kernel(SYS_set_tid_address, 0);
  kernel(SYS_set_robust_list, static_cast<long>(image->robust_list),
         static_cast<long>(image->robust_bytes));
  check(kernel(SYS_arch_prctl, kSetFs, static_cast<long>(image->fs_base)) == 0);
  if (image->rseq_bytes != 0) {
    check(kernel(SYS_rseq, static_cast<long>(image->rseq), image->rseq_bytes, 0,
                 RseqArea::kSignature) == 0);
  }
  *reinterpret_cast<Span*>(image->room) = plan->room;
  const long number = plan->number;
  const Context* const context = &image->context;
  __asm__ volatile(
      "ldmxcsr 64(%%rdi)\n\t"
      "fldcw 68(%%rdi)\n\t"
      "mov 0(%%rdi), %%rbx\n\t"
      "mov 8(%%rdi), %%rbp\n\t"
      "mov 16(%%rdi), %%r12\n\t"
      "mov 24(%%rdi), %%r13\n\t"
      "mov 32(%%rdi), %%r14\n\t"
      "mov 40(%%rdi), %%r15\n\t"
      "mov 48(%%rdi), %%rsp\n\t"
      "jmp *56(%%rdi)"
      :
      : "D"(context), "a"(number)
      : "memory");
  __builtin_unreachable();
}

// Returns 0; and once more, in the process that has become this one, the number given there.
extern "C" __attribute__((visibility("hidden"), returns_twice)) int ddprun_take_context(
    Context* context);
__asm__(
    ".text\n"
    ".globl ddprun_take_context\n"
    ".hidden ddprun_take_context\n"
    ".type ddprun_take_context, @function\n"
    "ddprun_take_context:\n\t"
    "mov %rbx, 0(%rdi)\n\t"
    "mov %rbp, 8(%rdi)\n\t"
    "mov %r12, 16(%rdi)\n\t"
    "mov %r13, 24(%rdi)\n\t"
    "mov %r14, 32(%rdi)\n\t"
    "mov %r15, 40(%rdi)\n\t"
    "lea 8(%rsp), %rdx\n\t"
    "mov %rdx, 48(%rdi)\n\t"
    "mov (%rsp), %rdx\n\t"
    "mov %rdx, 56(%rdi)\n\t"
    "stmxcsr 64(%rdi)\n\t"
    "fnstcw 68(%rdi)\n\t"
    "xor %eax, %eax\n\t"
    "ret\n"
    ".size ddprun_take_context, . - ddprun_take_context\n");

struct Reason {
  char* text;
  std::size_t bytes;

  bool operator()(const char* why, const char* what = "") const {
    std::snprintf(text, bytes, "%s%s", why, what);
    return false;
  }
  bool of_errno(const char* doing) const { return (*this)(doing, std::strerror(errno)); }
};

class File {
 public:
  explicit File(const char* path) : number_(::open(path, O_RDONLY | O_CLOEXEC)) {}
  ~File() {
    if (number_ >= 0) ::close(number_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int get() const { return number_; }

 private:
  int number_;
};

// The lines of a file in /proc, without memory of the heap's.
class Lines {
 public:
  explicit Lines(const char* path) : file_(path) {}

  // The next line, ended by a 0; null: there is none.
  char* next() {
    for (;;) {
      char* const begin = buffer_ + at_;
      if (auto* const end = static_cast<char*>(std::memchr(begin, '\n', used_ - at_))) {
        *end = '\0';
        at_ = static_cast<std::size_t>(end - buffer_) + 1;
        return begin;
      }
      std::memmove(buffer_, begin, used_ - at_);
      used_ -= at_;
      at_ = 0;
      if (used_ == sizeof buffer_) return nullptr;
      const ssize_t got = ::read(file_.get(), buffer_ + used_, sizeof buffer_ - used_);
      if (got <= 0) return nullptr;
      used_ += static_cast<std::size_t>(got);
    }
  }

 private:
  File file_;
  char buffer_[16384];
  std::size_t at_ = 0, used_ = 0;
};

// A line of /proc/self/maps, and the same in smaps: "7f..-7f.. r-xp 00001000 08:01 4711   /lib/x".
struct Mapping {
  Span at;
  bool reads, writes, executes, shared;
  std::uint64_t offset;
  char* path;

  bool is(const char* name) const { return std::strcmp(path, name) == 0; }
  bool starts_with(const char* name) const {
    return std::strncmp(path, name, std::strlen(name)) == 0;
  }
  bool is_special() const { return is("[vdso]") || starts_with("[vvar"); }
  bool is_anonymous() const {
    return *path == '\0' || is("[heap]") || is("[stack]") || starts_with("[anon:");
  }
};

bool parse(char* line, Mapping& mapping) {
  char access[5] = {};
  int path = -1;
  unsigned long begin = 0, end = 0, offset = 0;
  if (std::sscanf(line, "%lx-%lx %4s %lx %*s %*s%n", &begin, &end, access, &offset, &path) != 4 ||
      path < 0) {
    return false;
  }
  while (line[path] == ' ') ++path;
  mapping = {{begin, end},     access[0] == 'r', access[1] == 'w', access[2] == 'x',
             access[3] == 's', offset,           line + path};
  return true;
}

// Memory of its own for what save() writes down; it is saved with the rest, and given up by the
// process that goes on.
struct Tables {
  static constexpr std::size_t kAreas = 60'000, kRuns = 1'000'000, kNames = std::size_t{8} << 20;
  Image image;
  Area areas[kAreas];
  Run runs[kRuns];
  char names[kNames];
  Lines lines{"/proc/self/smaps"};
  std::uint64_t pages[8192];  // Of /proc/self/pagemap.
};

// Of the process that goes on: where become() has run, and what save() has taken.
Span left_room = {};
Tables* tables = nullptr;
sigset_t mask_before;

constexpr std::uint64_t rounded_up(std::uint64_t bytes) {
  return (bytes + kPage - 1) & ~(kPage - 1);
}

std::uint64_t thread_pointer() {
  std::uint64_t pointer = 0;
  kernel(SYS_arch_prctl, kGetFs, address(&pointer));
  return pointer;
}

class Saver {
 public:
  Saver(Tables& tables, int file, std::uint64_t at, Reason why)
      : t_(tables), image_(tables.image), file_(file), at_(at), why_(why) {}

  bool save() {
    std::memcpy(image_.magic, kMagic, sizeof kMagic);
    image_.bytes = sizeof image_;
    image_.names = 1;  // Offset 0 is no path.
    next_ = at_ + rounded_up(sizeof image_);
    return take_kernel_state() && take_layout() && take_areas() && write_pages() && write_tables();
  }

 private:
  bool take_kernel_state() {
    std::uint64_t gs = 0, shadow = 0;
    kernel(SYS_arch_prctl, kGetGs, address(&gs));
    if (gs != 0) return why_("it uses the segment register gs");
    kernel(SYS_arch_prctl, kShadowStackStatus, address(&shadow));
    if (shadow != 0) return why_("it has a shadow stack");
    image_.fs_base = thread_pointer();
    kernel(SYS_arch_prctl, kXcompPermitted, address(&image_.permitted_states));
    for (int signal = 1; signal <= kSignals; ++signal) {
      kernel(SYS_rt_sigaction, signal, 0, address(&image_.actions[signal]), sizeof(std::uint64_t));
    }
    kernel(SYS_sigaltstack, 0, address(&image_.signal_stack));
    kernel(SYS_get_robust_list, 0, address(&image_.robust_list), address(&image_.robust_bytes));
    const long barriers = kernel(SYS_membarrier, kMembarrierRegistrations);
    image_.barriers = barriers > 0 ? static_cast<std::int32_t>(barriers) : 0;
    image_.room = static_cast<std::uint64_t>(address(&left_room));
    if (!RseqArea::exists()) return true;
    const RseqArea area = RseqArea::withdraw();
    if (area.bytes == 0) return why_("its area of restartable sequences is not known");
    area.give();
    image_.rseq = area.address;
    image_.rseq_bytes = area.bytes;
    return true;
  }

  bool take_layout() {
    const File auxv("/proc/self/auxv"), stat("/proc/self/stat");
    const ssize_t bytes = ::read(auxv.get(), image_.auxv, sizeof image_.auxv);
    if (bytes <= 0 || bytes == sizeof image_.auxv) return why_("/proc/self/auxv cannot be read");
    char text[2048];
    const ssize_t got = ::read(stat.get(), text, sizeof text - 1);
    if (got <= 0) return why_.of_errno("reading /proc/self/stat: ");
    text[got] = '\0';
    std::uint64_t fields[53] = {};  // As proc(5) counts them.
    char* rest = std::strrchr(text, ')');
    if (rest == nullptr) return why_("/proc/self/stat has another form");
    int field = 2;
    char* save = nullptr;
    for (char* word = ::strtok_r(rest + 1, " ", &save); word && field < 52;
         word = ::strtok_r(nullptr, " ", &save)) {
      fields[++field] = std::strtoull(word, nullptr, 10);
    }
    if (field < 52) return why_("/proc/self/stat has too few fields");
    if (fields[20] != 1) return why_("it has several threads");
    image_.map = {.start_code = fields[26],
                  .end_code = fields[27],
                  .start_data = fields[45],
                  .end_data = fields[46],
                  .start_brk = fields[47],
                  .brk = static_cast<std::uint64_t>(kernel(SYS_brk, 0)),
                  .start_stack = fields[28],
                  .arg_start = fields[48],
                  .arg_end = fields[49],
                  .env_start = fields[50],
                  .env_end = fields[51],
                  .auxv = 0,
                  .auxv_bytes = static_cast<std::uint32_t>(bytes),
                  .program = ~std::uint32_t{0}};
    return true;
  }

  bool take_areas() {
    bool is_wanted = false;
    while (char* const line = t_.lines.next()) {
      const bool begins = (*line >= '0' && *line <= '9') || (*line >= 'a' && *line <= 'f');
      if (begins) {
        Mapping mapping;
        if (!parse(line, mapping)) return why_("/proc/self/smaps has another form: ", line);
        if (!take(mapping, is_wanted)) return false;
      } else if (!is_wanted && std::strncmp(line, "VmFlags:", 8) == 0) {
        if (std::strstr(line, " sl")) return why_("this kernel does not let its mappings be moved");
      } else if (std::strncmp(line, "VmFlags:", 8) == 0) {
        if (!take_flags(line + 8, t_.areas[image_.areas - 1])) return false;
      } else if (is_wanted && std::strncmp(line, "ProtectionKey:", 14) == 0 &&
                 std::atoi(line + 14) != 0) {
        return why_("it has memory with a protection key");
      }
    }
    if (image_.specials == 0) return why_("/proc/self/smaps is not complete");
    return true;
  }

  bool take(const Mapping& mapping, bool& is_wanted) {
    is_wanted = false;
    if (mapping.is("[vsyscall]")) return true;
    if (mapping.is_special()) {
      if (image_.specials == kSpecialMax) return why_("it has many mappings of the kernel's");
      image_.special[image_.specials++] = mapping.at;
      return true;
    }
    if (image_.areas == Tables::kAreas) return why_("it has too many mappings");
    is_wanted = true;
    Area& area = t_.areas[image_.areas++];
    area = {};
    area.at = mapping.at;
    area.offset = mapping.offset;
    area.protection = (mapping.reads ? PROT_READ : 0) | (mapping.writes ? PROT_WRITE : 0) |
                      (mapping.executes ? PROT_EXEC : 0);
    if (mapping.shared && mapping.writes) return why_("it shares memory: ", mapping.path);
    if (mapping.is_anonymous() && !mapping.shared) {
      area.flags = MAP_PRIVATE | MAP_ANONYMOUS;
      area.offset = 0;
      return true;
    }
    area.flags = mapping.shared ? MAP_SHARED : MAP_PRIVATE;
    return take_file(mapping.path, area);
  }

  bool take_file(const char* path, Area& area) {
    constexpr char kDeleted[] = " (deleted)";
    const std::size_t size = std::strlen(path);
    struct stat file;
    const bool deleted =
        size > sizeof kDeleted && std::strcmp(path + size + 1 - sizeof kDeleted, kDeleted) == 0;
    if (deleted || *path != '/' || ::stat(path, &file) != 0 || !S_ISREG(file.st_mode)) {
      return why_("it has mapped what is no file now: ", path);
    }
    area.device = file.st_dev;
    area.inode = file.st_ino;
    area.size = static_cast<std::uint64_t>(file.st_size);
    area.seconds = static_cast<std::uint64_t>(file.st_mtim.tv_sec);
    area.nanoseconds = static_cast<std::uint64_t>(file.st_mtim.tv_nsec);
    if (last_path_ != 0 && std::strcmp(t_.names + last_path_, path) == 0) {
      area.path = last_path_;
      return true;
    }
    if (image_.names + size + 1 > Tables::kNames) return why_("it has mapped too many files");
    last_path_ = area.path = static_cast<std::uint32_t>(image_.names);
    std::memcpy(t_.names + image_.names, path, size + 1);
    image_.names += size + 1;
    return true;
  }

  bool take_flags(char* text, Area& area) {
    char* save = nullptr;
    for (char* flag = ::strtok_r(text, " ", &save); flag; flag = ::strtok_r(nullptr, " ", &save)) {
      for (const auto& refused : kRefusedFlags) {
        if (std::strcmp(flag, refused) == 0) return why_("it has memory of the kind ", flag);
      }
      if (std::strcmp(flag, "gd") == 0) area.flags |= MAP_GROWSDOWN;
      if (std::strcmp(flag, "nr") == 0) area.flags |= MAP_NORESERVE;
      for (const Advice& advice : kAdvice) {
        if (std::strcmp(flag, advice.flag) == 0) area.advice |= 1U << advice.advice;
      }
    }
    return true;
  }

  bool write_pages() {
    const File pagemap("/proc/self/pagemap");
    if (pagemap.get() < 0) return why_.of_errno("reading /proc/self/pagemap: ");
    for (std::uint64_t i = 0; i < image_.areas; ++i) {
      Area& area = t_.areas[i];
      if ((area.flags & MAP_SHARED) != 0) continue;
      if (!write_area(area, pagemap.get())) return false;
    }
    return true;
  }

  bool write_area(Area& area, int pagemap) {
    constexpr std::uint64_t kOnce = sizeof t_.pages / sizeof t_.pages[0];
    const std::uint64_t count = area.at.bytes() / kPage;
    const bool hidden = (area.protection & PROT_READ) == 0;
    bool opened = false, written = true;
    for (std::uint64_t first = 0; first < count && written; first += kOnce) {
      const std::uint64_t some = count - first < kOnce ? count - first : kOnce;
      const std::uint64_t begin = area.at.begin + first * kPage;
      const auto bytes = static_cast<ssize_t>(some * sizeof(std::uint64_t));
      if (::pread(pagemap, t_.pages, static_cast<std::size_t>(bytes),
                  static_cast<off_t>(begin / kPage * sizeof(std::uint64_t))) != bytes) {
        return why_.of_errno("reading /proc/self/pagemap: ");
      }
      for (std::uint64_t page = 0; page < some && written;) {
        if (!is_own(t_.pages[page], area)) {
          ++page;
          continue;
        }
        if (hidden && !opened) {
          opened = true;
          ::mprotect(pointer(area.at.begin), area.at.bytes(), PROT_READ);
        }
        std::uint64_t end = page;
        while (end < some && is_own(t_.pages[end], area) && !is_empty(area, begin + end * kPage)) {
          if ((t_.pages[end] >> 58 & 1) != 0) return why_("it has guard pages");
          ++end;
        }
        if (end == page) {
          ++page;
          continue;
        }
        written = write_run(area, begin + page * kPage, (end - page) * kPage);
        page = end;
      }
    }
    if (opened) ::mprotect(pointer(area.at.begin), area.at.bytes(), area.protection);
    return written;
  }

  static void* pointer(std::uint64_t at) { return reinterpret_cast<void*>(at); }

  // Not that of the file; in memory or swapped out.
  static bool is_own(std::uint64_t page, const Area& area) {
    const bool present = (page >> 63 & 1) != 0, swapped = (page >> 62 & 1) != 0;
    const bool of_file = (page >> 61 & 1) != 0;
    return swapped || (present && (area.path == 0 || !of_file));
  }

  static bool is_empty(const Area& area, std::uint64_t page) {
    if (area.path != 0) return false;
    const auto* words = reinterpret_cast<const volatile std::uint64_t*>(page);
    for (std::size_t i = 0; i < kPage / sizeof *words; ++i) {
      if (words[i] != 0) return false;
    }
    return true;
  }

  bool write_run(Area& area, std::uint64_t begin, std::uint64_t bytes) {
    if (image_.runs == Tables::kRuns) return why_("its memory is in too many pieces");
    t_.runs[image_.runs++] = {begin, bytes, next_};
    area.has_runs = 1;
    if (!put(pointer(begin), bytes, next_)) return false;
    next_ += bytes;
    return true;
  }

  bool put(const void* from, std::uint64_t bytes, std::uint64_t at) {
    for (std::uint64_t done = 0; done < bytes;) {
      const ssize_t put = ::pwrite(file_, static_cast<const char*>(from) + done, bytes - done,
                                   static_cast<off_t>(at + done));
      if (put <= 0) return why_.of_errno("writing its memory: ");
      done += static_cast<std::uint64_t>(put);
    }
    return true;
  }

  bool write_tables() {
    image_.areas_at = next_;
    image_.runs_at = image_.areas_at + image_.areas * sizeof(Area);
    image_.names_at = image_.runs_at + image_.runs * sizeof(Run);
    return put(t_.areas, image_.areas * sizeof(Area), image_.areas_at) &&
           put(t_.runs, image_.runs * sizeof(Run), image_.runs_at) &&
           put(t_.names, image_.names, image_.names_at) && put(&image_, sizeof image_, at_);
  }

  Tables& t_;
  Image& image_;
  int file_;
  std::uint64_t at_, next_ = 0;
  std::uint32_t last_path_ = 0;
  Reason why_;
};

bool read_whole(int file, void* to, std::uint64_t bytes, std::uint64_t at) {
  for (std::uint64_t done = 0; done < bytes;) {
    const ssize_t got =
        ::pread(file, static_cast<char*>(to) + done, bytes - done, static_cast<off_t>(at + done));
    if (got <= 0) return false;
    done += static_cast<std::uint64_t>(got);
  }
  return true;
}

bool overlap(const Span& a, const Span& b) { return a.begin < b.end && b.begin < a.end; }

// Checks all that can be checked, and prepares the room; the last step does not return.
class Becomer {
 public:
  Becomer(int file, std::uint64_t at, int number, Reason why)
      : file_(file), at_(at), number_(number), why_(why) {}

  bool become() { return read_image() && take_specials() && make_room() && leave(); }

 private:
  bool read_image() {
    if (!read_whole(file_, &image_, sizeof image_, at_)) return why_("it is not complete");
    const bool known = std::memcmp(image_.magic, kMagic, sizeof kMagic) == 0 &&
                       image_.bytes == sizeof image_ && image_.areas <= Tables::kAreas &&
                       image_.runs <= Tables::kRuns && image_.names <= Tables::kNames &&
                       image_.specials <= kSpecialMax && image_.map.auxv_bytes <= kAuxvMax;
    return known || why_("it is of another kind");
  }

  // Ours are put where those of the image were, and have to be as large.
  bool take_specials() {
    Lines lines("/proc/self/maps");
    while (char* const line = lines.next()) {
      Mapping mapping;
      if (!parse(line, mapping)) return why_("/proc/self/maps has another form");
      if (!mapping.is_special()) continue;
      const std::uint64_t i = specials_;
      if (i == image_.specials || image_.special[i].bytes() != mapping.at.bytes()) {
        return why_("the kernel's own mappings are others");
      }
      special_[specials_++] = mapping.at;
      special_bytes_ += mapping.at.bytes();
    }
    return specials_ == image_.specials || why_("the kernel's own mappings are others");
  }

  static std::uint64_t code_bytes() {
    return rounded_up(static_cast<std::uint64_t>(__stop_ddprun_return - __start_ddprun_return));
  }

  bool make_room() {
    const std::uint64_t sizes[] = {code_bytes(),
                                   rounded_up(sizeof(Plan)) + rounded_up(sizeof(Image)),
                                   rounded_up(image_.areas * sizeof(Area)),
                                   rounded_up(image_.runs * sizeof(Run)),
                                   rounded_up(image_.names + 1),
                                   kStack};
    std::uint64_t bytes = special_bytes_;
    for (const std::uint64_t size : sizes) bytes += size;
    // The areas have to be known before a place for them is.
    const auto* areas = static_cast<const Area*>(::mmap(
        nullptr, sizes[2] + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (areas == MAP_FAILED) return why_.of_errno("mmap: ");
    auto* const writable = const_cast<Area*>(areas);
    if (!read_whole(file_, writable, image_.areas * sizeof(Area), image_.areas_at)) {
      return why_("it is not complete");
    }
    room_ = {};
    constexpr std::uint64_t kStep = std::uint64_t{1} << 32;
    for (std::uint64_t begin = 2 * kStep; begin < kTop / 2 && room_.end == 0; begin += kStep) {
      const Span place{begin, begin + bytes};
      bool free = true;
      for (std::uint64_t i = 0; i < image_.areas && free; ++i) free = !overlap(areas[i].at, place);
      if (!free) continue;
      void* const made = ::mmap(reinterpret_cast<void*>(begin), bytes, PROT_READ | PROT_WRITE,
                                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
      if (made == reinterpret_cast<void*>(begin)) room_ = place;
      if (made != MAP_FAILED && room_.end == 0) ::munmap(made, bytes);
    }
    if (room_.end == 0) return why_("there is no room beside its memory");
    auto* at = reinterpret_cast<char*>(room_.begin);
    std::memcpy(at, __start_ddprun_return,
                static_cast<std::size_t>(__stop_ddprun_return - __start_ddprun_return));
    at += sizes[0];
    plan_ = reinterpret_cast<Plan*>(at);
    auto* const image = reinterpret_cast<Image*>(at + rounded_up(sizeof(Plan)));
    at += sizes[1];
    *image = image_;
    image->map.auxv = static_cast<std::uint64_t>(address(image->auxv));
    *plan_ = {.image = image,
              .areas = reinterpret_cast<Area*>(at),
              .runs = reinterpret_cast<Run*>(at + sizes[2]),
              .names = at + sizes[2] + sizes[3],
              .room = room_,
              .parked = room_.end - special_bytes_,
              .special = {},
              .file = file_,
              .number = number_};
    std::memcpy(plan_->special, special_, sizeof special_);
    return read_tables(at, sizes[2], sizes[3]);
  }

  bool read_tables(char* at, std::uint64_t areas, std::uint64_t runs) {
    if (!read_whole(file_, at, image_.areas * sizeof(Area), image_.areas_at) ||
        !read_whole(file_, at + areas, image_.runs * sizeof(Run), image_.runs_at) ||
        !read_whole(file_, at + areas + runs, image_.names, image_.names_at)) {
      return why_("it is not complete");
    }
    for (std::uint64_t i = 0; i < image_.areas; ++i) {
      if (plan_->areas[i].path >= image_.names) return why_("it is damaged");
    }
    return true;
  }

  bool leave() {
    if (image_.permitted_states != 0) {
      std::uint64_t ours = 0;
      kernel(SYS_arch_prctl, kXcompPermitted, address(&ours));
      for (std::uint64_t more = image_.permitted_states & ~ours; more != 0; more &= more - 1) {
        kernel(SYS_arch_prctl, kXcompRequest, __builtin_ctzll(more));
      }
      kernel(SYS_arch_prctl, kXcompPermitted, address(&ours));
      if ((image_.permitted_states & ~ours) != 0) return why_("the processor's state is another");
    }
    for (int bits = image_.barriers; bits != 0; bits &= bits - 1) {
      kernel(SYS_membarrier, bits & -bits);
    }
    if (::mprotect(reinterpret_cast<void*>(room_.begin), code_bytes(), PROT_READ | PROT_EXEC) !=
        0) {
      return why_.of_errno("mprotect: ");
    }
    sigset_t all;
    ::sigfillset(&all);
    kernel(SYS_rt_sigprocmask, SIG_SETMASK, address(&all), 0, sizeof(std::uint64_t));
    // From here on nothing can be taken back.
    if (RseqArea::exists()) (void)RseqArea::withdraw();
    const auto offset =
        static_cast<std::uint64_t>(reinterpret_cast<const char*>(::become) - __start_ddprun_return);
    __asm__ volatile(
        "mov %0, %%rsp\n\t"
        "xor %%ebp, %%ebp\n\t"
        "call *%1\n\t"
        "hlt"
        :
        : "r"(plan_->parked - 64), "r"(room_.begin + offset), "D"(plan_)
        : "memory");
    __builtin_unreachable();
  }

  static constexpr std::uint64_t kStack = 64 * 1024;
  int file_;
  std::uint64_t at_;
  int number_;
  Reason why_;
  Image image_;
  Span special_[kSpecialMax] = {}, room_ = {};
  std::uint64_t specials_ = 0, special_bytes_ = 0;
  Plan* plan_ = nullptr;
};

}  // namespace

int ddprun_image_save(int file, long at, char* why, unsigned long why_bytes) {
  const Reason reason{why, why_bytes};
  void* const memory = ::mmap(nullptr, sizeof(Tables), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    reason.of_errno("mmap: ");
    return -1;
  }
  ::madvise(memory, sizeof(Tables), MADV_NOHUGEPAGE);
  tables = static_cast<Tables*>(memory);
  sigset_t all;
  ::sigfillset(&all);
  ::sigprocmask(SIG_SETMASK, &all, &mask_before);
  // From here on the second return uses nothing but what has a fixed place.
  const int number = ddprun_take_context(&tables->image.context);
  int result = number;
  if (number == 0) {
    new (&tables->lines) Lines("/proc/self/smaps");
    result = Saver(*tables, file, static_cast<std::uint64_t>(at), reason).save() ? 0 : -1;
    tables->lines.~Lines();
  } else {
    ::munmap(reinterpret_cast<void*>(left_room.begin), left_room.bytes());
  }
  ::munmap(tables, sizeof(Tables));
  ::sigprocmask(SIG_SETMASK, &mask_before, nullptr);
  return result;
}

int ddprun_image_become(int file, long at, int number, char* why, unsigned long why_bytes) {
  (void)Becomer(file, static_cast<std::uint64_t>(at), number, {why, why_bytes}).become();
  return -1;
}

#else

int ddprun_image_save(int, long, char* why, unsigned long why_bytes) {
  std::snprintf(why, why_bytes, "this processor is none of x86-64");
  return -1;
}

int ddprun_image_become(int, long, int, char* why, unsigned long why_bytes) {
  std::snprintf(why, why_bytes, "this processor is none of x86-64");
  return -1;
}

#endif
