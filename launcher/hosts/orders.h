#pragma once
// What the launching ddprun sends to the far ends that it started by ssh, on their standard input:
// first its orders, then signals; the end of the input ends the run. Nothing secret is ever an
// argument, which every user of a machine could read. Pure. docs/protocol.md describes it for
// readers.
//
//   node      -> "ddprun-control 2"                  on its standard output, once it listens
//   launcher  -> frame of Orders                     only after that line
//   launcher  -> frames of "signal SIGINT", ..., "now", "withdrawn"
//   node      -> "ddprun-control <nonce> ended 7"    its last line: its exit code, not ssh's

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"
#include "common/frames.h"

namespace ddprun::launcher {

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

}  // namespace ddprun::launcher
