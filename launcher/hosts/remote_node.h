#pragma once
// One node that ssh runs for us: interprets its lines and its end. Pure; ssh_node.h owns the
// process and the pipes.
//
//   kConnecting --its ready line--> kReady --orders--> kRunning --ended line, then the end-->
//   kEnded
//        '------------------------------ the end -------------------------------------------^
//   Lines before the ready line come from ssh or from the shell's start-up files, and are kept for
//   the error message. Two of them request a copy of our ddprun (own_copy.h), which the machine
//   there must be able to run.

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "common/time.h"

namespace ddprun::launcher {

// From the start of ssh until a host that gets a copy is ready.
inline constexpr Milliseconds kCopyLimit{300'000};

class RemoteNode {
 public:
  enum class State {
    kConnecting,  // ssh has been started.
    kReady,       // ddprun listens there.
    kRunning,     // It has received its orders.
    kEnded,       // Its ssh is gone.
  };

  // What a far end without ddprun waits for.
  enum class Wants { kNothing, kOffer, kCopy };

  // `machine` is the kind of this one, as `uname -m` prints it.
  RemoteNode(std::string host, std::string program, std::string machine)
      : host_(std::move(host)), program_(std::move(program)), machine_(std::move(machine)) {}

  State state() const { return state_; }
  const std::string& host() const { return host_; }

  void ordered(std::string nonce);

  // To be given now, once.
  Wants take_wants() { return std::exchange(wants_, Wants::kNothing); }
  // It has requested a copy of our ddprun that it can run, and has none yet.
  bool is_copying() const { return state_ == State::kConnecting && there_ == machine_; }
  // It has requested one that it could not run: why() names both machines.
  bool is_other_machine() const { return !there_.empty() && there_ != machine_; }

  // True if the line is to be shown to the user.
  bool on_stdout_line(std::string_view line);
  bool on_stderr_line(std::string_view line);

  // ssh ended with this code, 128 + n for signal n.
  void on_end(int exit_code);

  // ddprun's own exit code, once it is known.
  std::optional<int> exit_code() const { return exit_code_; }

  // It has ended without ever running; why() is a sentence that names the cure.
  bool never_ran() const { return state_ == State::kEnded && !has_run_; }
  // It ran, and ssh broke before it ended.
  bool was_lost() const { return state_ == State::kEnded && has_run_ && !exit_code_; }
  std::string why() const;

 private:
  std::string why_ssh_failed() const;

  std::string host_;
  std::string program_;  // The path of ddprun there.
  std::string machine_;
  std::string there_;  // The kind of that machine, if it has no ddprun.
  Wants wants_ = Wants::kNothing;
  State state_ = State::kConnecting;
  bool was_ready_ = false;
  bool has_run_ = false;
  std::string nonce_;
  std::string last_words_;  // The last lines before kRunning, joined.
  std::string greeting_;    // The last line on standard output before ddprun was ready.
  std::optional<int> exit_code_;
  int ssh_code_ = 0;
};

}  // namespace ddprun::launcher
