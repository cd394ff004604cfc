#include "worker_sdk/join/spawn_child.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

#include "common/system/child_process.h"
#include "common/system/descriptors.h"
#include "common/system/folder.h"
#include "common/worker_link.h"
#include "ddprun/error.h"
#include "ddprun/spawn.h"
#include "worker_sdk/base/system_limits.h"
#include "worker_sdk/gloo/gloo_transfers.h"
#include "worker_sdk/store/store_host.h"
#include "worker_sdk/worker/crash_text.h"

namespace ddprun::worker_sdk {
namespace {

// Variables that a launcher set for the parent, not for the children.
constexpr const char* kParents[] = {"DDPRUN_PROGRESS", worker_link::kVariable,
                                    "TORCHELASTIC_ERROR_FILE", "TORCHELASTIC_RESTART_COUNT",
                                    "TORCHELASTIC_RUN_ID"};

void set(const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); }

void take_seat(const ChildSeat& seat, std::uint16_t port) {
  for (const char* name : kParents) ::unsetenv(name);
  for (const char* name : {"RANK", "LOCAL_RANK"}) set(name, std::to_string(seat.rank));
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) set(name, std::to_string(seat.size));
  set("GROUP_RANK", "0");
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port));
  set("TORCHELASTIC_USE_AGENT_STORE", "True");  // The parent hosts it.
}

void write_report(int fd, std::string text) {
  text.resize(std::min(text.size(), kWordsMax));
  (void)ddprun::write_all(fd, text);
}

bool is_victims(const Error& error) {
  return error.kind() == ErrorKind::peer_lost || error.kind() == ErrorKind::aborted ||
         error.kind() == ErrorKind::timed_out;
}

[[noreturn]] void leave(int code) {
  std::fflush(nullptr);
  std::cout.flush();
  ::_exit(code);
}

// The port; 0: the parent is gone.
std::uint16_t read_port(int fd) {
  std::uint16_t port = 0;
  ssize_t n = 0;
  while ((n = ::read(fd, &port, sizeof port)) < 0 && errno == EINTR) {
  }
  return n == sizeof port ? port : 0;
}

}  // namespace

void run_child(const ChildSeat& seat, const std::function<void(int)>& body) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != seat.parent) ::_exit(1);
  ::signal(SIGTERM, SIG_DFL);  // A handler of the parent's is not for us.
  const std::uint16_t port = read_port(seat.port);
  if (port == 0) ::_exit(1);
  take_seat(seat, port);
  try {
    body(seat.rank);
  } catch (const Error& error) {
    write_report(seat.report, (is_victims(error) ? kVictim : kCulprit) + std::string(error.what()));
    leave(1);
  } catch (...) {
    write_report(seat.report, kCulprit + describe_current_exception());
    leave(1);
  }
  leave(0);
}

}  // namespace ddprun::worker_sdk

namespace ddprun {

// spawn(): forks the children, watches them and ends them. As the store must not have a thread
// before the last fork, a child receives its port through a pipe. Through another pipe the child
// reports what it threw.

namespace worker_sdk {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kStoreTimeout{10000};
constexpr std::int64_t kLongestPollMs = 1 << 30;

[[noreturn]] void refuse(ErrorKind kind, const std::string& text) {
  throw Error(kind, {.operation = "spawn"}, text);
}

#ifdef __SANITIZE_THREAD__
bool has_threads() { return false; }  // Except ThreadSanitizer's own.
#else
// A thread that has been joined may still be on its way out; the kernel has marked it, then.
bool is_leaving(const std::string& task) {
  constexpr unsigned kExiting = 4;  // PF_EXITING.
  std::ifstream file("/proc/self/task/" + task + "/stat");
  std::string text;
  std::getline(file, text);
  std::istringstream after_name(text.substr(std::min(text.size(), text.rfind(')') + 1)));
  std::string word;  // State, parent, group, session, terminal and its group.
  for (int i = 0; i < 6; ++i) after_name >> word;
  unsigned flags = kExiting;  // The child may be gone already.
  after_name >> flags;
  return (flags & kExiting) != 0;
}

bool has_threads() {
  int alive = 0;
  for (const std::string& task : names_in("/proc/self/task").names) {
    if (!is_leaving(task)) ++alive;
  }
  return alive > 1;
}
#endif

struct Pipe {
  UniqueFd read, write;
};

Pipe make_pipe() {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) refuse(ErrorKind::system, std::strerror(errno));
  return {UniqueFd(ends[0]), UniqueFd(ends[1])};
}

struct Child {
  int rank = 0;
  pid_t pid = -1;
  UniqueFd port;     // Sends the store's port to the child.
  UniqueFd report;   // Receives `message`.
  UniqueFd process;  // A pidfd, as a child's own children may hold its pipes open.
  std::string message = {};
  bool ended = false;
  int status = 0;
  bool status_known = true;  // False: other code in this process has waited for the child.

  bool failed() const { return ended && (status != 0 || !status_known); }
  // Whether it only suffered from another child's failure.
  bool is_victim() const { return !message.empty() && message[0] == kVictim; }
};

// All children of one spawn(); kills those that are left.
class Children {
 public:
  ~Children() {
    for (Child& child : children_) {
      if (!child.ended) ::kill(child.pid, SIGKILL);
    }
    for (Child& child : children_) reap(child);
  }

  void fork_one(int rank, int n, const std::function<void(int)>& body) {
    Pipe port = make_pipe(), report = make_pipe();
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    if (pid < 0) refuse(ErrorKind::system, std::string("fork: ") + std::strerror(errno));
    if (pid == 0) {
      // The other children's ends would keep these pipes open after their death.
      for (Child& child : children_) {
        child.port.reset();
        child.report.reset();
      }
      port.write.reset();
      report.read.reset();
      run_child({rank, n, parent, port.read.get(), report.write.get()}, body);
    }
    ::fcntl(report.read.get(), F_SETFL, O_NONBLOCK);
    children_.push_back({rank, pid, std::move(port.write), std::move(report.read), {}});
    children_.back().process = open_pidfd(pid);
    if (!children_.back().process && has_pidfds()) refuse(ErrorKind::system, std::strerror(errno));
  }

  // Blocks SIGPIPE: a child may have died before it read the port.
  void send_port(std::uint16_t port) {
    const SigpipeGuard guard;
    for (Child& child : children_) {
      [[maybe_unused]] const auto n = ::write(child.port.get(), &port, sizeof port);
      child.port.reset();
    }
  }

  // Waits until all have ended, or the first failure is clear. nullptr: all succeeded.
  const Child* watch(milliseconds grace) {
    std::optional<Clock::time_point> verdict;  // When even a victim counts as the first.
    for (;;) {
      const Child* first = first_failure();
      if (first && (!first->is_victim() || all_ended())) return first;
      if (all_ended()) return nullptr;
      if (first && !verdict) verdict = deadline_after(grace);
      if (verdict && Clock::now() >= *verdict) return first;
      wait_for_ends(verdict);
    }
  }

  void end_all(milliseconds grace) {
    const auto deadline = deadline_after(grace);
    for (Child& child : children_) {
      if (!child.ended) ::kill(child.pid, SIGTERM);
    }
    while (!all_ended() && Clock::now() < deadline) wait_for_ends(deadline);
  }

 private:
  bool all_ended() const {
    return std::all_of(children_.begin(), children_.end(), [](const auto& c) { return c.ended; });
  }

  // In the order in which failures were noticed, culprits before victims.
  const Child* first_failure() const {
    const Child* victim = nullptr;
    for (const int rank : order_) {
      const Child& child = children_[static_cast<std::size_t>(rank)];
      if (!child.failed()) continue;
      if (!child.is_victim()) return &child;
      if (!victim) victim = &child;
    }
    return victim;
  }

  void wait_for_ends(std::optional<Clock::time_point> deadline) {
    std::vector<pollfd> entries;
    for (const Child& child : children_) entries.push_back({child.process.get(), POLLIN, 0});
    int limit = has_pidfds() ? -1 : static_cast<int>(kLookAgain.count());
    if (deadline) {
      const auto left = std::chrono::ceil<milliseconds>(*deadline - Clock::now());
      const std::int64_t most = has_pidfds() ? kLongestPollMs : kLookAgain.count();
      limit = static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, most));
    }
    if (::poll(entries.data(), entries.size(), limit) < 0 && errno != EINTR) {
      refuse(ErrorKind::system, std::string("poll: ") + std::strerror(errno));
    }
    for (std::size_t i = 0; i < entries.size(); ++i) {
      Child& child = children_[i];
      const bool unseen = !child.ended && !child.process && child_has_ended(child.pid, UniqueFd());
      if (entries[i].revents != 0 || unseen) reap(child);
    }
  }

  void reap(Child& child) {
    if (child.ended) return;
    pid_t waited = 0;
    while ((waited = ::waitpid(child.pid, &child.status, 0)) < 0 && errno == EINTR) {
    }
    child.status_known = waited == child.pid;
    child.ended = true;
    order_.push_back(child.rank);
    child.process.reset();  // poll() passes over it from now on.
    child.message.resize(kWordsMax);
    const ssize_t n = ::read(child.report.get(), child.message.data(), child.message.size());
    child.message.resize(n > 0 ? static_cast<std::size_t>(n) : 0);
  }

  std::vector<Child> children_;
  std::vector<int> order_;  // Ranks as they ended.
};

// If SIGCHLD is ignored, the kernel forgets how children ended. So SIGCHLD is not ignored while
// this lives.
class ChildrenAreReaped {
 public:
  ChildrenAreReaped() {
    if (::sigaction(SIGCHLD, nullptr, &before_) != 0) refuse(ErrorKind::system, "sigaction");
    const bool handled = before_.sa_handler != SIG_IGN && before_.sa_handler != SIG_DFL;
    if (before_.sa_handler != SIG_IGN && (before_.sa_flags & SA_NOCLDWAIT) == 0) return;
    struct sigaction now = before_;
    now.sa_flags &= ~SA_NOCLDWAIT;
    if (!handled) now.sa_handler = SIG_DFL;
    changed_ = ::sigaction(SIGCHLD, &now, nullptr) == 0;
  }
  ~ChildrenAreReaped() {
    if (changed_) ::sigaction(SIGCHLD, &before_, nullptr);
  }
  ChildrenAreReaped(const ChildrenAreReaped&) = delete;

 private:
  struct sigaction before_ {};
  bool changed_ = false;
};

[[noreturn]] void throw_failure(const Child& child) {
  const bool killed = WIFSIGNALED(child.status);
  const int signal = killed ? WTERMSIG(child.status) : 0;
  const int ended = killed ? 128 + signal : WEXITSTATUS(child.status);
  const int code = child.status_known ? ended : 1;
  std::string text = child.message.empty() ? "" : child.message.substr(1);
  if (text.empty() && !child.status_known) {
    text =
        "how it ended is not known, as something else in this process waits for its children, "
        "such as a handler of SIGCHLD";
  } else if (text.empty() && killed) {
    text = "it was killed by signal " + std::to_string(signal) + " (" + ::strsignal(signal) + ")";
  } else if (text.empty()) {
    text = "it exited with code " + std::to_string(code);
  }
  throw SpawnError(child.rank, code, signal, text);
}

}  // namespace
}  // namespace worker_sdk

SpawnError::SpawnError(int rank, int exit_code, int signal, const std::string& text)
    : Error(ErrorKind::peer_lost, {.operation = "spawn", .peer = rank},
            "rank " + std::to_string(rank) + " failed: " + text),
      exit_code_(exit_code),
      signal_(signal) {}

void spawn(int n, const std::function<void(int rank)>& body, const SpawnOptions& options) {
  using namespace worker_sdk;
  if (n < 1) refuse(ErrorKind::bad_argument, "cannot spawn " + std::to_string(n) + " ranks");
  if (!body) refuse(ErrorKind::bad_argument, "there is no function that the ranks could call");
  if (has_threads()) {
    refuse(ErrorKind::bad_argument,
           "this process has threads already, which its children would lack; call it earlier");
  }
  // Otherwise a child would print again what is buffered here.
  std::fflush(nullptr);
  std::cout.flush();
  // A child must not inherit a lock that another thread holds at the fork, so the store, which has
  // a thread, is created after the last fork. It is destroyed last, as children that exit cleanly
  // may still write to it.
  std::optional<StoreHost> store;
  const ChildrenAreReaped reaped;
  Children children;
  for (int rank = 0; rank < n; ++rank) children.fork_one(rank, n, body);
  store.emplace("127.0.0.1", 0, Clock::now() + kStoreTimeout);
  children.send_port(store->port());
  const Child* failed = children.watch(options.grace);
  if (!failed) return;
  children.end_all(options.grace);
  throw_failure(*failed);
}

}  // namespace ddprun
