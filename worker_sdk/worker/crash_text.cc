#include "worker_sdk/worker/crash_text.h"

#include <cxxabi.h>
#include <execinfo.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <exception>
#include <iterator>
#include <memory>
#include <string>
#include <typeinfo>

#include "ddprun/crash_report.h"

namespace ddprun::worker_sdk {
namespace {

constexpr char kDigits[] = "0123456789abcdef";
std::atomic<CrashHook> crash_hook{nullptr};

const char* signal_name_of(int signal) {
  switch (signal) {
    case SIGSEGV: return "SIGSEGV";
    case SIGBUS: return "SIGBUS";
    case SIGFPE: return "SIGFPE";
    case SIGILL: return "SIGILL";
    default: return "SIGABRT";
  }
}

}  // namespace

void CrashText::add(char letter) {
  if (used_ == size_) flush();
  if (used_ < size_) buffer_[used_++] = letter;
}

void CrashText::add(std::string_view text) {
  for (const char letter : text) add(letter);
}

void CrashText::add_number(std::int64_t number) {
  char digits[24];
  std::size_t count = 0;
  const bool negative = number < 0;
  auto left =
      negative ? 0 - static_cast<std::uint64_t>(number) : static_cast<std::uint64_t>(number);
  do {
    digits[count++] = kDigits[left % 10];
    left /= 10;
  } while (left > 0);
  if (negative) add('-');
  while (count > 0) add(digits[--count]);
}

void CrashText::add_hex(std::uintptr_t number) {
  add("0x");
  bool begun = false;
  for (int shift = static_cast<int>(sizeof number) * 8 - 4; shift >= 0; shift -= 4) {
    const auto digit = number >> shift & 0xf;
    begun = begun || digit != 0 || shift == 0;
    if (begun) add(kDigits[digit]);
  }
}

// Bytes outside ASCII become '?': the file must hold JSON whatever a path is called.
void CrashText::add_escaped(std::string_view text) {
  for (const char letter : text) {
    const auto byte = static_cast<unsigned char>(letter);
    if (letter == '\n') {
      add("\\n");
    } else if (letter == '"' || letter == '\\') {
      add('\\');
      add(letter);
    } else {
      add(byte < 0x20 || byte > 0x7e ? '?' : letter);
    }
  }
}

void CrashText::flush() {
  if (fd_ < 0) return;
  for (std::size_t done = 0; done < used_;) {
    const ssize_t written = ::write(fd_, buffer_ + done, used_ - done);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) break;
    done += static_cast<std::size_t>(written);
  }
  used_ = 0;
}

void set_crash_hook(CrashHook hook) noexcept { crash_hook.store(hook); }

std::string killed_by(int signal) {
  return "was killed by signal " + std::to_string(signal) + " (" + signal_name_of(signal) + ")";
}

std::string describe_current_exception() {
  const std::string text = text_of_current_exception();
  return text.empty() ? "" : "uncaught " + text;
}

std::string text_of_current_exception() {
  const std::type_info* type = abi::__cxa_current_exception_type();
  if (!type) return "";
  int status = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(
      abi::__cxa_demangle(type->name(), nullptr, nullptr, &status), &std::free);
  std::string text = status == 0 ? name.get() : type->name();
  try {
    std::rethrow_exception(std::current_exception());
  } catch (const std::exception& exception) {
    text += std::string(": ") + exception.what();
  } catch (...) {
  }
  return text;
}

}  // namespace ddprun::worker_sdk

namespace ddprun {

// The handler of install_crash_report(). Between the signal and the end only what may be called
// from a signal handler is called: write(2) and the like, and backtrace(), which is safe once it
// has been called before (its library is loaded by then).

namespace {

using worker_sdk::CrashText;

constexpr int kSignals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT};
constexpr int kFramesMax = 64;
constexpr std::size_t kStackBytes = std::size_t{128} << 10;
constexpr std::size_t kHookStackBytes = std::size_t{8} << 20;
constexpr unsigned kReportSeconds = 5;  // A lock that the crash has left held must not keep us.
constexpr int kHookSeconds = 60;
constexpr long kHookPollMs = 20;

// Written once, before the handlers are installed.
char error_file[4096];
char rank_text[16] = "?";
std::terminate_handler previous_terminate = nullptr;
std::atomic<bool> installed{false};
std::atomic<bool> crashing{false};
int crash_signal = 0;
char exception_text[1024];  // Text of the uncaught exception.
// Kept for the report: the crash may be due to a lack of descriptors.
int reserve[2] = {-1, -1};
struct sigaction handlers_before[std::size(kSignals)] = {};  // By index in kSignals.

[[maybe_unused]] std::uintptr_t distance(std::uintptr_t a, std::uintptr_t b) {
  return a > b ? a - b : b - a;
}

// On a stack overflow, the address that could not be read is next to the stack pointer.
bool is_stack_overflow(int signal, const siginfo_t& info, const void* context) {
  if (signal != SIGSEGV || info.si_code <= 0) return false;
  constexpr std::uintptr_t kNear = std::uintptr_t{64} << 10;
  const auto address = reinterpret_cast<std::uintptr_t>(info.si_addr);
  const auto& machine = static_cast<const ucontext_t*>(context)->uc_mcontext;
#if defined(__x86_64__)
  return distance(address, static_cast<std::uintptr_t>(machine.gregs[REG_RSP])) < kNear;
#elif defined(__aarch64__)
  return distance(address, machine.sp) < kNear;
#else
  return (void)machine, false;
#endif
}

void describe(CrashText& text, int signal, const siginfo_t& info, const void* context) {
  if (exception_text[0] != '\0') return text.add(exception_text);
  text.add(worker_sdk::signal_name_of(signal));
  if (is_stack_overflow(signal, info, context)) return text.add(": stack overflow");
  if (signal == SIGABRT) return text.add(": abort() was called");
  text.add(info.si_code > 0 ? " at address " : " sent by process ");
  if (info.si_code > 0) return text.add_hex(reinterpret_cast<std::uintptr_t>(info.si_addr));
  text.add_number(info.si_pid);
}

// {"message": {"message": "...", "extraInfo": {"cpp_callstack": "...", "timestamp": "..."}}}
void write_error_file(std::string_view message, void** frames, int count) {
  if (error_file[0] == '\0') return;
  for (const int held : reserve) ::close(held);
  const int file = ::open(error_file, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (file < 0) return;
  CrashText json(file);
  json.add("{\"message\": {\"message\": \"");
  json.add_escaped(message);
  json.add("\", \"extraInfo\": {\"cpp_callstack\": \"");
  const int symbols = ::memfd_create("ddprun backtrace", MFD_CLOEXEC);
  if (symbols >= 0) {
    ::backtrace_symbols_fd(frames, count, symbols);
    char part[512];
    ::lseek(symbols, 0, SEEK_SET);
    for (ssize_t got; (got = ::read(symbols, part, sizeof part)) > 0;) {
      json.add_escaped({part, static_cast<std::size_t>(got)});
    }
    ::close(symbols);
  }
  json.add("\", \"timestamp\": \"");
  timespec now{};
  ::clock_gettime(CLOCK_REALTIME, &now);
  json.add_number(now.tv_sec);
  json.add("\"}}}\n");
  json.flush();
  ::close(file);
}

// The report hangs: end as if there had been none.
void give_up(int) {
  ::signal(crash_signal, SIG_DFL);
  sigset_t crash;
  ::sigemptyset(&crash);
  ::sigaddset(&crash, crash_signal);
  ::pthread_sigmask(SIG_UNBLOCK, &crash, nullptr);
  ::raise(crash_signal);
}

struct HookCall {
  worker_sdk::CrashHook hook;
  int signal;
  pid_t parent;
};

int call_hook(void* argument) {
  const auto& [hook, signal, parent] = *static_cast<const HookCall*>(argument);
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (const int each : kSignals) ::signal(each, SIG_DFL);
  if (::getppid() == parent) hook(signal);
  ::_exit(0);
}

// Not by fork(), whose locks the crash may have left held, and with a stack for an interpreter:
// that of the handler is small.
void run_hook(int signal) {
  HookCall call{worker_sdk::crash_hook.load(), signal, ::getpid()};
  if (!call.hook) return;
  void* stack = ::mmap(nullptr, kHookStackBytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK | MAP_NORESERVE, -1, 0);
  if (stack == MAP_FAILED) return;
  const pid_t copy =
      ::clone(call_hook, static_cast<char*>(stack) + kHookStackBytes, SIGCHLD, &call);
  if (copy < 0) return;
  const timespec pause{.tv_sec = 0, .tv_nsec = kHookPollMs * 1'000'000};
  for (long left = kHookSeconds * 1000; left > 0; left -= kHookPollMs) {
    const pid_t ended = ::waitpid(copy, nullptr, WNOHANG);
    if (ended == copy || (ended < 0 && errno == ECHILD)) return;
    ::nanosleep(&pause, nullptr);
  }
  ::kill(copy, SIGKILL);
}

// SA_RESETHAND: a crash in here ends the process by its signal.
void on_crash(int signal, siginfo_t* info, void* context) {
  if (crashing.exchange(true)) {
    for (;;) ::pause();  // Another thread is at it, and ends us.
  }
  crash_signal = signal;
  ::signal(SIGPIPE, SIG_IGN);  // Standard error may have lost its reader.
  ::signal(SIGALRM, give_up);
  ::alarm(kReportSeconds);
  char buffer[1536];
  CrashText message(buffer, sizeof buffer);
  describe(message, signal, *info, context);
  CrashText line(STDERR_FILENO);
  line.add("ddprun: rank ");
  line.add(rank_text);
  line.add(": ");
  line.add(message.text());
  line.add("; call stack:\n");
  line.flush();
  void* frames[kFramesMax];
  const int count = ::backtrace(frames, kFramesMax);
  write_error_file(message.text(), frames, count);
  ::backtrace_symbols_fd(frames, count, STDERR_FILENO);
  ::alarm(0);
  run_hook(signal);
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    if (kSignals[i] == signal) ::sigaction(signal, &handlers_before[i], nullptr);
  }
  // A fault happens again when we return; what was sent, by abort() too, does not.
  if (info->si_code <= 0) ::raise(signal);
}

// Not in a signal handler yet, so it may allocate. abort() then leads to on_crash.
void on_terminate() {
  const std::string text = worker_sdk::describe_current_exception();
  text.copy(exception_text, sizeof exception_text - 1);
  if (previous_terminate) previous_terminate();
  std::abort();
}

// A stack for the handlers, so that they run after a stack overflow. Only for the calling thread,
// usually the main one.
void give_handlers_a_stack() {
  stack_t present{};
  if (::sigaltstack(nullptr, &present) != 0 || !(present.ss_flags & SS_DISABLE)) return;
  void* memory = ::mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED) return;
  const stack_t own{.ss_sp = memory, .ss_flags = 0, .ss_size = kStackBytes};
  ::sigaltstack(&own, nullptr);
}

void copy_variable(const char* name, char* to, std::size_t size) {
  const char* value = std::getenv(name);
  if (!value) return;
  const std::string_view text(value);
  if (text.size() < size) to[text.copy(to, size - 1)] = '\0';
}

}  // namespace

void install_crash_report(bool before_handlers) noexcept {
  if (installed.exchange(true)) return;
  copy_variable("TORCHELASTIC_ERROR_FILE", error_file, sizeof error_file);
  copy_variable("RANK", rank_text, sizeof rank_text);
  for (int& held : reserve) held = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  void* frame = nullptr;
  ::backtrace(&frame, 1);
  give_handlers_a_stack();
  for (std::size_t i = 0; i < std::size(kSignals); ++i) {
    const int signal = kSignals[i];
    struct sigaction present {};
    if (::sigaction(signal, nullptr, &present) != 0) continue;
    const bool handled = (present.sa_flags & SA_SIGINFO) != 0 || present.sa_handler != SIG_DFL;
    const bool ignored = (present.sa_flags & SA_SIGINFO) == 0 && present.sa_handler == SIG_IGN;
    if (ignored || (handled && !before_handlers)) continue;
    handlers_before[i] = present;
    struct sigaction ours {};
    ours.sa_sigaction = on_crash;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_RESETHAND;
    ::sigemptyset(&ours.sa_mask);
    ::sigaction(signal, &ours, nullptr);
  }
  previous_terminate = std::set_terminate(on_terminate);
}

}  // namespace ddprun
