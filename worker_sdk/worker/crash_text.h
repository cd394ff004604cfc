#pragma once
// The report of a worker that crashes: text that is put together in a signal handler, and the text
// of an exception.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun::worker_sdk {

// Text put together in a signal handler: allocates no memory, calls nothing of stdio.
// describe_current_exception() is not for signal handlers.
class CrashText {
 public:
  // Into `buffer`; what does not fit is left out.
  CrashText(char* buffer, std::size_t size) : buffer_(buffer), size_(size) {}
  // Writes to a file, a block at a time; flush() at the end.
  explicit CrashText(int fd) : buffer_(block_), size_(sizeof block_), fd_(fd) {}
  CrashText(const CrashText&) = delete;
  CrashText& operator=(const CrashText&) = delete;

  void add(std::string_view text);
  void add_number(std::int64_t number);
  void add_hex(std::uintptr_t number);
  void add_escaped(std::string_view text);  // As the inside of a JSON string.
  void flush();

  std::string_view text() const { return {buffer_, used_}; }

 private:
  void add(char letter);

  char block_[256] = {};
  char* buffer_;
  std::size_t size_;
  std::size_t used_ = 0;
  int fd_ = -1;
};

// What is done last when a crash is reported, for at most a minute: called with the signal in a
// copy of this process, which ends when it returns. So it may do what a signal handler must not; if
// it crashes, too, or waits for a lock that the crash has left held, only what it does is lost.
using CrashHook = void (*)(int signal);
void set_crash_hook(CrashHook hook) noexcept;

std::string killed_by(int signal);  // "was killed by signal 11 (SIGSEGV)", of those reported.

// "uncaught std::runtime_error: loss is NaN"; empty without an exception.
std::string describe_current_exception();
std::string text_of_current_exception();  // Without the first word.

}  // namespace ddprun::worker_sdk
