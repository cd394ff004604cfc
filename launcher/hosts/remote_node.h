#pragma once
// One node that ssh runs for us: the orders that it is sent, and the meaning of its lines and its
// end. Pure; ssh_node.h owns the process and the pipes, control_stdin.h is the far end.
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
#include <vector>

#include "common/error.h"
#include "common/frames.h"
#include "common/time.h"

namespace ddprun::launcher {

// What the launching ddprun sends to the far ends that it started by ssh, on their standard input:
// first its orders, then signals; the end of the input ends the run. Nothing secret is ever an
// argument, which every user of a machine could read. docs/protocol.md describes it for readers.
//
//   node      -> "ddprun-control 2"                  on its standard output, once it listens
//   launcher  -> frame of Orders                     only after that line
//   launcher  -> frames of "signal SIGINT", ..., "now", "withdrawn"
//   node      -> "ddprun-control <nonce> ended 7"    its last line: its exit code, not ssh's

inline constexpr std::size_t kOrdersBytesMax = kFrameBytesMax;
inline constexpr std::string_view kControlFlag = "--control-stdin";
inline constexpr std::string_view kReadyLine = "ddprun-control 2";
// Before it, of a host without this ddprun (own_copy.h).
inline constexpr std::string_view kWantsLine = "ddprun-control wants ";
inline constexpr std::string_view kSendLine = "ddprun-control send";

struct Orders {
  std::string nonce;  // Marks the last line, which no worker can print then.
  std::string token;  // Empty: auth=none.
  std::string working_folder;
  std::vector<std::string> argv;
  std::vector<std::string> environment;  // "NAME=value".
  bool operator==(const Orders&) const = default;
};

std::string encode(const Orders& orders);  // Without its frame.
Result<Orders> decode_orders(std::string_view body);

std::string encode_signal(int signal);
std::optional<int> decode_signal(std::string_view body);  // Only a signal that may be forwarded.

// In place of a signal: the user pressed Ctrl-C twice, kill everything. Older nodes ignore it.
inline constexpr std::string_view kKillNow = "now";

// The node's host is no longer listed (--host-discovery): the node leaves the run at the next point
// at which the others lose no work.
inline constexpr std::string_view kWithdrawn = "withdrawn";

std::string ended_line(const std::string& nonce, int exit_code);
std::optional<int> exit_code_in(std::string_view line, const std::string& nonce);

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
