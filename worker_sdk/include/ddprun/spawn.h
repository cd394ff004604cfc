#pragma once
// Runs ranks as child processes, without a launcher, like torch.multiprocessing.spawn. For tests,
// notebooks and programs started by hand.
//
//   int main() {
//     ddprun::spawn(4, [](int rank) {
//       auto group = ddprun::ProcessGroup::init();      // Connects the ranks.
//       ...
//     });
//   }

#include <chrono>
#include <functional>
#include <string>

#include "ddprun/error.h"

namespace ddprun {

struct SpawnOptions {
  /// Time between SIGTERM and SIGKILL for the other ranks after a rank has failed.
  std::chrono::milliseconds grace = std::chrono::seconds(5);
};

/// A rank of spawn() failed. where().peer is the rank that failed first; a rank that reports only a
/// lost peer is not considered the first while another rank may still report a failure. The text is
/// the message of its exception, or how it ended.
class SpawnError : public Error {
 public:
  SpawnError(int rank, int exit_code, int signal, const std::string& text);
  int exit_code() const noexcept { return exit_code_; }  ///< 128 + signal if killed by a signal.
  int signal() const noexcept { return signal_; }        ///< 0: none.

 private:
  int exit_code_;
  int signal_;
};

/// Forks `n` processes, each of which calls `body` with its rank, and returns when all have exited
/// with 0. They are ranks 0 .. n - 1 of one host (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR... are
/// set) and use a store in this process, on the loopback interface. Each child starts with a copy
/// of this process's memory.
///
/// Throws Error(bad_argument) if `n` is below 1 or `body` empty, and if this process has other
/// threads, because children would lack them.
/// If a rank fails (throws, exits with a code other than 0, is killed), spawn() ends the other
/// ranks and throws SpawnError. If this process is killed, so are the ranks. A child exits without
/// running destructors of static objects. During the call and in children SIGCHLD is not ignored,
/// even if it was before.
void spawn(int n, const std::function<void(int rank)>& body, const SpawnOptions& options = {});

}  // namespace ddprun
