#pragma once
// What a child of spawn() does. Used by spawn_child.cc.

#include <sys/types.h>

#include <cstddef>
#include <functional>

namespace ddprun::worker_sdk {

// The first letter of what a child says of its end.
constexpr char kCulprit = '!';
constexpr char kVictim = '~';  // It lost a peer, or was told to give up.

constexpr std::size_t kWordsMax = 32768;  // Fits into a pipe, so that no child waits for us.

struct ChildSeat {
  int rank = 0;
  int size = 1;
  pid_t parent = -1;
  int port = -1;    // To read the store's port from.
  int report = -1;  // To say what was thrown.
};

// Ends the process.
[[noreturn]] void run_child(const ChildSeat& seat, const std::function<void(int)>& body);

}  // namespace ddprun::worker_sdk
