// Programs that crash with install_crash_report(): what they leave behind, and by what they end.

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>
#include <catch2/catch.hpp>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <new>
#include <stdexcept>
#include <thread>

#include "common/system/descriptors.h"
#include "ddprun/crash_report.h"
#include "worker_sdk/worker/crash_text.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitized = true;  // It has handlers of its own, which are left alone.
#else
constexpr bool kSanitized = false;
#endif

namespace ddprun {
namespace {

namespace fs = std::filesystem;

struct Crash {
  int status = 0;  // As of waitpid.
  std::string output;
  std::string error_file;
};

std::string contents(const fs::path& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

// A child that does `what`.
Crash crash(const std::function<void()>& what) {
  char folder[] = "/tmp/ddprun-crash-XXXXXX";
  REQUIRE(::mkdtemp(folder));
  const fs::path place(folder);
  const int pid = ::fork();
  if (pid == 0) {
    ::setenv("TORCHELASTIC_ERROR_FILE", (place / "error.json").c_str(), 1);
    ::setenv("RANK", "3", 1);
    const int output = ::open((place / "said").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    ::dup2(output, STDERR_FILENO);
    const rlimit none{0, 0};
    ::setrlimit(RLIMIT_CORE, &none);
    for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::signal(signal, SIG_DFL);
    install_crash_report();
    what();
    std::_Exit(99);
  }
  Crash crash;
  ::waitpid(pid, &crash.status, 0);
  crash.output = contents(place / "said");
  crash.error_file = contents(place / "error.json");
  fs::remove_all(place);
  return crash;
}

int signal_of(const Crash& crash) { return WIFSIGNALED(crash.status) ? WTERMSIG(crash.status) : 0; }

bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

volatile int* volatile null_pointer = nullptr;

int recurse(int depth) {
  volatile char block[4096];
  block[0] = static_cast<char>(depth);
  return depth < 0 ? 0 : recurse(depth + 1) + block[0];
}

// noexcept: not caught here, and not by a frame of Catch either.
void throw_out(const std::function<void()>& thrower) noexcept { thrower(); }

TEST_CASE("Crash report: an exception nobody catches is named with its words", "[crash]") {
  const Crash seen =
      crash([] { throw_out([] { throw std::runtime_error("loss is \"NaN\"\nat step 3"); }); });
  CHECK(signal_of(seen) == SIGABRT);
  CHECK(has(seen.output, "ddprun: rank 3: uncaught std::runtime_error: loss is \"NaN\""));
  CHECK(has(seen.output, "terminate called after throwing"));  // libstdc++ prints its text, too.
  CHECK(has(seen.error_file,
            R"("message": "uncaught std::runtime_error: loss is \"NaN\"\nat step 3")"));
  CHECK(has(seen.error_file, R"("cpp_callstack": ")"));
  CHECK(has(seen.error_file, "crash_report_test("));
}

TEST_CASE("Crash report: a fault is named with its address, and ends by its own signal",
          "[crash]") {
  if (kSanitized) return;
  const Crash seen = crash([] { *null_pointer = 1; });
  CHECK(signal_of(seen) == SIGSEGV);
  CHECK(has(seen.output, "ddprun: rank 3: SIGSEGV at address 0x0; call stack:\n"));
  CHECK(has(seen.error_file, "SIGSEGV at address 0x0"));
}

TEST_CASE("Crash report: nobody reads standard error, and the end is that of the crash",
          "[crash]") {
  if (kSanitized) return;
  const Crash seen = crash([] {
    int ends[2];
    if (::pipe(ends) != 0) std::_Exit(98);
    ::dup2(ends[1], STDERR_FILENO);
    ::close(ends[0]);
    *null_pointer = 1;
  });
  CHECK(signal_of(seen) == SIGSEGV);  // Not SIGPIPE.
  CHECK(has(seen.error_file, "SIGSEGV at address 0x0"));
}

TEST_CASE("Crash report: an overflowed stack is told from other faults", "[crash]") {
  if (kSanitized) return;
  const Crash seen = crash([] { std::_Exit(recurse(1)); });
  CHECK(signal_of(seen) == SIGSEGV);
  CHECK(has(seen.output, "SIGSEGV: stack overflow"));
  CHECK(has(seen.error_file, "SIGSEGV: stack overflow"));
}

TEST_CASE("Crash report: abort(), and signals that were sent", "[crash]") {
  CHECK(has(crash([] { std::abort(); }).output, "SIGABRT: abort() was called"));
  for (const int signal : {SIGABRT, SIGFPE}) {
    const Crash seen = crash([signal] { ::kill(::getpid(), signal); });
    CHECK(signal_of(seen) == signal);
    CHECK(has(seen.output, "call stack"));
  }
}

TEST_CASE("Crash report: there is no descriptor left", "[crash]") {
  if (kSanitized) return;  // The sanitizers need descriptors of their own.
  const Crash seen = crash([] {
    const rlimit few{32, 32};
    ::setrlimit(RLIMIT_NOFILE, &few);
    while (::open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) {
    }
    throw_out([] { throw std::runtime_error("Too many open files"); });
  });
  CHECK(has(seen.error_file, "Too many open files"));
  CHECK(has(seen.error_file, "crash_report_test("));
}

TEST_CASE("Crash report: handlers that are there already are left alone", "[crash]") {
  const Crash seen = crash([] {
    ::signal(SIGUSR1, SIG_DFL);
    install_crash_report();  // Changes nothing.
    ::signal(SIGSEGV, [](int) { std::_Exit(7); });
    ::raise(SIGSEGV);
  });
  CHECK(WEXITSTATUS(seen.status) == 7);
  CHECK(seen.error_file.empty());
}

TEST_CASE("Crash report: several threads crash at once, and one speaks", "[crash]") {
  if (kSanitized) return;
  const Crash seen = crash([] {
    std::thread other([] { *null_pointer = 1; });
    *null_pointer = 2;
    other.join();
  });
  CHECK(signal_of(seen) == SIGSEGV);
  CHECK(seen.output.find("call stack") == seen.output.rfind("call stack"));
}

TEST_CASE("Crash text: numbers, and JSON whatever the bytes", "[crash]") {
  char buffer[64];
  worker_sdk::CrashText text(buffer, sizeof buffer);
  text.add_number(0);
  text.add_number(-120);
  text.add_hex(0x7f00);
  text.add_escaped("a\"b\\c\n\x01\xff");
  CHECK(text.text() == "0-1200x7f00a\\\"b\\\\c\\n??");
  text.add(std::string(100, 'x'));
  CHECK(text.text().size() == sizeof buffer);
}

}  // namespace
}  // namespace ddprun
