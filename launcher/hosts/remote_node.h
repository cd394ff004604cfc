#pragma once
// One node that ssh runs for us: interprets its lines and its end. Pure; ssh_node.h owns the
// process and the pipes.
//
//   kConnecting --its ready line--> kReady --orders--> kRunning --ended line, then the end-->
//   kEnded
//        '------------------------------ the end -------------------------------------------^
//   Lines before the ready line come from ssh or from the shell's start-up files, and are kept for
//   the error message.

#include <optional>
#include <string>
#include <string_view>

namespace ddprun::launcher {

class RemoteNode {
 public:
  enum class State {
    kConnecting,  // ssh has been started.
    kReady,       // ddprun listens there.
    kRunning,     // It has received its orders.
    kEnded,       // Its ssh is gone.
  };

  RemoteNode(std::string host, std::string program) : host_(std::move(host)), program_(program) {}

  State state() const { return state_; }
  const std::string& host() const { return host_; }

  void ordered(std::string nonce);

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
