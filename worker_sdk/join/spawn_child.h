#pragma once
// The child's side of spawn(). Used by spawn_child.cc.

#include <sys/types.h>

#include <cstddef>
#include <functional>

namespace ddprun::worker_sdk {

// The first letter of a child's report about its end.
constexpr char kCulprit = '!';
constexpr char kVictim = '~';  // It lost a peer, or was ordered to give up.

constexpr std::size_t kWordsMax = 32768;  // Fits into a pipe, so that no child waits for us.

struct ChildSeat {
  int rank = 0;
  int size = 1;
  pid_t parent = -1;
  int port = -1;    // The pipe with the store's port.
  int report = -1;  // The pipe for the report.
};

// Ends the process.
[[noreturn]] void run_child(const ChildSeat& seat, const std::function<void(int)>& body);

}  // namespace ddprun::worker_sdk
