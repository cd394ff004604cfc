// The worker of tests/failures/fault_campaign.py: fails in the way that $FAULT names if its rank is
// one of $CULPRITS ("2" or "1,3"), after three steps. The other ranks either go on stepping in
// lockstep with it by the SDK ($PEERS=lockstep), and become its victims, or watch it ($PEERS=watch)
// and end as soon as it has, or wait to be stopped.

#include <ddprun/ddprun.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <stdexcept>
#include <string>
#include <system_error>
#include <vector>

namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

bool is_culprit() {
  return ("," + variable("CULPRITS") + ",").find("," + variable("RANK") + ",") != std::string::npos;
}

void limit(int resource, rlim_t value) {
  rlimit both{};
  ::getrlimit(static_cast<__rlimit_resource_t>(resource), &both);
  both.rlim_cur = value;
  ::setrlimit(static_cast<__rlimit_resource_t>(resource), &both);
}

ddprun::ProcessGroup* joined = nullptr;  // In lockstep.
bool unwinds = false;                    // The culprit leaves its group, and then main().
std::size_t elements = 1000;             // Of what the ranks reduce.

void fail_while_a_child_holds_the_pipe() {
  if (::fork() == 0) {
    ::sleep(60);
    std::_Exit(0);
  }
  std::fprintf(stderr, "the loss is NaN\n");
  std::_Exit(9);
}

[[noreturn]] void hang() {
  for (;;) ::pause();
}

volatile int* volatile null_pointer = nullptr;

int recurse(int depth) {
  volatile char block[4096];
  block[0] = static_cast<char>(depth);
  return depth < 0 ? 0 : recurse(depth + 1) + block[0];
}

void read_behind_the_end_of_a_file() {
  char path[] = "/tmp/ddprun-fault-XXXXXX";
  const int file = ::mkstemp(path);
  ::unlink(path);
  auto* memory = static_cast<volatile char*>(::mmap(nullptr, 4096, PROT_READ, MAP_SHARED, file, 0));
  std::exit(memory[0]);
}

void open_for_ever() {
  limit(RLIMIT_NOFILE, 64);
  while (::open("/dev/null", O_RDONLY) >= 0) {
  }
  throw std::system_error(errno, std::generic_category(), "opening shard 63");
}

void write_for_ever(const std::string& path) {
  const std::string block(1 << 16, 'x');
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  while (::write(file, block.data(), block.size()) >= 0) {
  }
  throw std::system_error(errno, std::generic_category(), "writing " + path);
}

void use_all_memory() {
  for (std::vector<std::vector<char>> all;;) all.emplace_back(std::size_t{8} << 20, 'x');
}

void join_cgroup_and_use_all_memory() {
  const int group = ::open(variable("CGROUP_PROCS").c_str(), O_WRONLY);
  if (group < 0 || ::write(group, "0", 1) != 1) std::_Exit(98);
  use_all_memory();
}

void child_in_own_session_fails() {
  const int child = ::fork();
  if (child == 0) {
    ::setsid();
    std::_Exit(9);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  std::fprintf(stderr, "the data loader ended with %d\n", WEXITSTATUS(status));
  std::exit(WEXITSTATUS(status));
}

// After main(), as a tracker does with its records.
void flush() {
  const timespec second{1, 0};
  ::nanosleep(&second, nullptr);
}

// Each is one kind of the campaign.
const std::map<std::string, std::function<void()>> kFaults = {
    {"exit_1", [] { std::exit(1); }},
    {"exit_3", [] { std::exit(3); }},
    {"exit_255", [] { std::exit(255); }},
    {"sigkill", [] { ::raise(SIGKILL); }},
    {"sigterm", [] { ::raise(SIGTERM); }},
    {"sigint", [] { ::raise(SIGINT); }},
    {"sighup", [] { ::raise(SIGHUP); }},
    {"sigquit", [] { ::raise(SIGQUIT); }},
    {"sigusr1", [] { ::raise(SIGUSR1); }},
    {"sigpipe", [] { ::signal(SIGPIPE, SIG_DFL), ::raise(SIGPIPE); }},
    {"abort", [] { std::abort(); }},
    {"segfault", [] { *null_pointer = 1; }},
    {"sigbus", read_behind_the_end_of_a_file},
    {"sigfpe", [] { ::raise(SIGFPE); }},
    {"sigill", [] { __builtin_trap(); }},
    {"cpp_exception", [] { throw std::runtime_error("loss is NaN"); }},
    {"bad_alloc", [] { limit(RLIMIT_AS, rlim_t{1} << 30), use_all_memory(); }},
    {"oom_kill", join_cgroup_and_use_all_memory},
    {"stack_overflow", [] { std::exit(recurse(1)); }},
    {"descriptors", open_for_ever},
    {"disk_full", [] { write_for_ever(variable("FULL_DISK")); }},
    {"cpu_limit",
     [] {
       for (limit(RLIMIT_CPU, 1);;) (void)*const_cast<int* volatile*>(&null_pointer);
     }},
    {"file_limit", [] { limit(RLIMIT_FSIZE, 1 << 16), write_for_ever(variable("D") + "/big"); }},
    {"cuda_memory",
     [] {
       throw std::runtime_error(
           "CUDA out of memory. Tried to allocate 20.00 MiB. GPU 0 has a total capacity of 79.10 "
           "GiB "
           "of which 10.12 MiB is free.\nException raised from malloc at "
           "../c10/cuda/CUDACachingAllocator.cpp:1392 (most recent call first):\n"
           "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x96 (0x7f in "
           "libc10.so)");
     }},
    {"cuda_access",
     [] {
       throw std::runtime_error(
           "CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be "
           "asynchronously reported at some other API call, so the stacktrace below might be "
           "incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1");
     }},
    {"no_file",
     [] { throw std::system_error(ENOENT, std::generic_category(), "opening /data/shard-3"); }},
    {"atexit_fails", [] { std::atexit([] { std::_Exit(9); }), std::exit(0); }},
    {"setsid_child", child_in_own_session_fails},
    {"sigstop", [] { ::raise(SIGSTOP); }},
    {"endless_loop",
     [] {
       for (volatile unsigned i = 0;;) i = i + 1;
     }},
    {"held_pipe", fail_while_a_child_holds_the_pipe},
    {"leave", [] { std::exit(0); }},
    {"unwind_slowly", [] { std::atexit(flush), unwinds = true; }},
    {"unwind_and_hang", [] { std::atexit(hang), unwinds = true; }},
    {"exit_slowly", [] { std::atexit(flush), std::exit(std::stoi(variable("CODE"))); }},
    {"group_abort", [] { joined->abort(); }},
    {"other_size", [] { elements = 999; }},
    {"hang_in_exit", [] { std::atexit(hang), std::exit(0); }},
};

// noexcept: an uncaught exception ends the program here.
void fail() noexcept { kFaults.at(variable("FAULT"))(); }

void step_in_lockstep() {
  auto group = ddprun::ProcessGroup::init(
      {.op_timeout = std::chrono::seconds(std::stoi(variable("OP_SECONDS")))});
  joined = &group;
  std::vector<float> gradient(elements, 1.0F);
  for (int step = 0;; ++step) {
    group.all_reduce(ddprun::buffer(gradient.data(), elements));
    if (step == 3 && is_culprit()) fail();
    if (unwinds) return;
  }
}

// Dies of the culprit's death, as soon as that can be seen, and prints nothing.
[[noreturn]] void watch() {
  const std::string path = variable("D") + "/culprit";
  int pid = 0;
  while (pid == 0) {
    if (std::FILE* file = std::fopen(path.c_str(), "r")) {
      if (std::fscanf(file, "%d", &pid) != 1) pid = 0;
      std::fclose(file);
    }
  }
  while (::kill(pid, 0) == 0) {
  }
  std::_Exit(96);
}

void be_watched() {
  const std::string path = variable("D") + "/culprit";
  std::FILE* file = std::fopen((path + ".new").c_str(), "w");
  std::fprintf(file, "%d\n", ::getpid());
  std::fclose(file);
  (void)std::rename((path + ".new").c_str(), path.c_str());
}

}  // namespace

int main() {
  limit(RLIMIT_CORE, 0);
  ddprun::install_crash_report();
  if (variable("PEERS") == "watch") {
    if (!is_culprit()) watch();
    be_watched();
    fail();
  }
  if (variable("PEERS") != "lockstep") {
    if (is_culprit()) fail();
    hang();
  }
  try {
    step_in_lockstep();
    return std::stoi(variable("CODE"));
  } catch (const ddprun::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 97;
  }
}
