#pragma once
// The area of restartable sequences that glibc 2.35 and newer have registered for this thread with
// the kernel, where the kernel keeps the thread's processor. What is done to a thread's memory
// behind glibc's back has to renew that. For process_image.cc and fork_below.cc, on x86-64.

#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

extern "C" {
// Absent before glibc 2.35.
// NOLINTBEGIN(bugprone-reserved-identifier): glibc's names.
extern const std::ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned int __rseq_size __attribute__((weak));
// NOLINTEND(bugprone-reserved-identifier)
}

namespace ddprun::agent {

struct RseqArea {
  static constexpr unsigned kBytesMax = 1024;
  static constexpr unsigned kSignature = 0x5305'3053;

  static bool exists() { return &__rseq_size != nullptr && __rseq_size != 0; }

  // Takes it back from the kernel: 0 bytes if it cannot be.
  static RseqArea withdraw() {
    constexpr int kGetFs = 0x1003, kUnregister = 1;
    RseqArea area;
    ::syscall(SYS_arch_prctl, kGetFs, &area.address);
    area.address += static_cast<std::uint64_t>(__rseq_offset);
    // As many bytes as glibc has given, which it does not report.
    for (unsigned bytes = 32; bytes <= kBytesMax; bytes += 4) {
      if (::syscall(SYS_rseq, area.address, bytes, kUnregister, kSignature) == 0) {
        area.bytes = bytes;
        break;
      }
    }
    return area;
  }
  void give() const { ::syscall(SYS_rseq, address, bytes, 0, kSignature); }

  std::uint64_t address = 0;
  unsigned bytes = 0;
};

}  // namespace ddprun::agent
