#include "tests/process/agent/processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "agent/process/roster.h"
#include "agent/workers/child_start.h"
#include "common/system/child_process.h"
#include "common/system/secrets.h"

namespace ddprun::test {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kPatience{20};

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

int left_ms(Clock::time_point until) {
  return static_cast<int>(
      std::max<long>(0, std::chrono::ceil<milliseconds>(until - Clock::now()).count()));
}

}  // namespace

Mark::Mark() : variable_("DDPRUN_TEST_MARK=" + random_hex(12)) {}

Mark::~Mark() {
  for (const int pid : carriers()) ::kill(pid, SIGKILL);
}

std::vector<int> Mark::carriers() const {
  std::vector<int> pids;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", error)) {
    const std::string name = entry.path().filename().string();
    if (!std::isdigit(static_cast<unsigned char>(name[0]))) continue;
    if (read_file(entry.path() / "environ").find(variable_) != std::string::npos)
      pids.push_back(std::stoi(name));
  }
  return pids;
}

bool Mark::all_gone() const {
  const auto until = Clock::now() + std::chrono::seconds(10);
  for (std::vector<int> pids = carriers(); !pids.empty(); pids = carriers()) {
    if (!Ends(pids).wait(std::chrono::milliseconds(left_ms(until)))) return false;
  }
  return true;
}

std::vector<int> Mark::carriers_running(const std::string& word) const {
  std::vector<int> found;
  for (const int pid : carriers()) {
    const std::string line = read_file("/proc/" + std::to_string(pid) + "/cmdline");
    if (line.find(std::string("\0", 1) + word + std::string("\0", 1)) != std::string::npos)
      found.push_back(pid);
  }
  return found;
}

Ends::Ends(const std::vector<int>& pids) {
  for (const int pid : pids) {
    UniqueFd pidfd = open_pidfd(pid);
    if (pidfd) pidfds_.push_back(std::move(pidfd));
  }
}

bool Ends::wait(milliseconds limit) {
  const Clock::time_point until = Clock::now() + limit;
  for (const UniqueFd& pidfd : pidfds_) {
    pollfd poll{pidfd.get(), POLLIN, 0};
    if (::poll(&poll, 1, left_ms(until)) != 1) return false;
  }
  return true;
}

TestProcess::TestProcess(const std::vector<std::string>& argv, const std::string& variable) {
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) return;
  pipe_.reset(ends[0]);
  const UniqueFd child_end(ends[1]);
  std::vector<std::string> environment = agent::current_environment();
  environment.push_back(variable);
  // Not a Spawner: a launcher must not die with the thread that started it, nor be in our
  // session's care.
  std::vector<char*> arguments, variables;
  for (const std::string& word : argv) arguments.push_back(const_cast<char*>(word.c_str()));
  for (const std::string& entry : environment)
    variables.push_back(const_cast<char*>(entry.c_str()));
  arguments.push_back(nullptr);
  variables.push_back(nullptr);
  pid_ = ::fork();
  if (pid_ != 0) return;
  ::dup2(child_end.get(), STDOUT_FILENO);
  ::dup2(child_end.get(), STDERR_FILENO);
  ::execve(arguments[0], arguments.data(), variables.data());
  ::_exit(127);
}

TestProcess::~TestProcess() {
  if (reaped_ || pid_ <= 0) return;
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

bool TestProcess::read_some(Clock::time_point until) {
  pollfd poll{pipe_.get(), POLLIN, 0};
  if (::poll(&poll, 1, left_ms(until)) != 1) return false;
  char block[65536];
  const ssize_t got = ::read(pipe_.get(), block, sizeof block);
  if (got <= 0) return false;
  output_.append(block, static_cast<std::size_t>(got));
  return true;
}

bool TestProcess::wait_for_output(const std::string& text, int count) {
  const Clock::time_point until = Clock::now() + kPatience;
  for (;;) {
    int seen = 0;
    for (std::size_t at = 0; (at = output_.find(text, at)) != std::string::npos; at += text.size())
      ++seen;
    if (seen >= count) return true;
    if (!read_some(until)) return false;
  }
}

void TestProcess::read_rest() {
  const Clock::time_point until = Clock::now() + kPatience;
  while (read_some(until)) {
  }
}

int TestProcess::wait(milliseconds limit) {
  const UniqueFd pidfd = open_pidfd(pid_);
  pollfd poll{pidfd.get(), POLLIN, 0};
  if (!pidfd || ::poll(&poll, 1, left_ms(Clock::now() + limit)) != 1) return -1;
  int status = 0;
  ::waitpid(pid_, &status, 0);
  reaped_ = true;
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int open_descriptors() {
  const auto entries = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<int>(std::distance(begin(entries), end(entries)));
}

int parent_of(int pid) {
  const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
  const std::size_t close = stat.rfind(')');
  return close == std::string::npos ? 0 : std::atoi(stat.c_str() + close + 4);
}

std::string program_of(int pid) {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/" + std::to_string(pid) + "/exe", error)
      .filename()
      .string();
}

int zombies() {
  int count = 0;
  for (const int pid : agent::children_of_self()) {
    const std::string stat = read_file("/proc/" + std::to_string(pid) + "/stat");
    const std::size_t close = stat.rfind(')');
    count += close != std::string::npos && stat[close + 2] == 'Z';
  }
  return count;
}

}  // namespace ddprun::test
