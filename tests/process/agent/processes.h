#pragma once
// Processes as tests see them: one started with a pipe on its output, and all those that carry a
// mark in their environment, wherever they were re-parented to.

#include <chrono>
#include <string>
#include <vector>

#include "common/system/descriptors.h"

namespace ddprun::test {

// DDPRUN_TEST_MARK=<random>: every process started from here that has not changed its environment
// carries it, children's children too.
class Mark {
 public:
  Mark();
  ~Mark();  // Kills what still carries it, so that a failed test leaves nothing behind.
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

  const std::string& variable() const { return variable_; }
  // Living processes that carry the mark; zombies have no environment any more.
  std::vector<int> carriers() const;
  // Those that have `word` among their arguments.
  std::vector<int> carriers_running(const std::string& word) const;
  // Within 10 s: on a loaded machine the kernel alone may need that to take a killed process's
  // memory apart. Nothing else would end what tests start so soon.
  bool all_gone() const;

 private:
  std::string variable_;
};

// Watches processes end without looking again and again.
class Ends {
 public:
  explicit Ends(const std::vector<int>& pids);
  // How long it took from now until the last had ended; nothing if that was longer than `limit`.
  bool wait(std::chrono::milliseconds limit);

 private:
  std::vector<UniqueFd> pidfds_;
};

class TestProcess {
 public:
  // Both outputs go into one pipe. The environment is ours and `variable`.
  TestProcess(const std::vector<std::string>& argv, const std::string& variable);
  ~TestProcess();
  TestProcess(const TestProcess&) = delete;
  TestProcess& operator=(const TestProcess&) = delete;

  int pid() const { return pid_; }
  const std::string& output() const { return output_; }
  // Reads until `text` has come `count` times. False if that takes more than 20 s.
  bool wait_for_output(const std::string& text, int count);
  // Its exit code, 128 + n for signal n; -1 if it does not end within `limit`.
  int wait(std::chrono::milliseconds limit = std::chrono::seconds(20));
  // Everything that is still to come, for at most 20 s, until no process holds the pipe any more.
  void read_rest();

 private:
  bool read_some(std::chrono::steady_clock::time_point until);

  int pid_ = 0;
  bool reaped_ = false;
  UniqueFd pipe_;
  std::string output_;
};

// From /proc; 0 and empty if the process is gone.
int parent_of(int pid);
std::string program_of(int pid);  // The file it executes, without the folder.

// How many descriptors this process has open.
int open_descriptors();

// Dead children of this process that are not reaped.
int zombies();

}  // namespace ddprun::test
