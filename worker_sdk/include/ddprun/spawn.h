#pragma once
// Ranks as child processes of this one, without a launcher: torch.multiprocessing.spawn. For tests,
// notebooks and programs that are started by hand.
//
//   int main() {
//     ddprun::spawn(4, [](int rank) {
//       auto group = ddprun::ProcessGroup::init();      // Finds the others.
//       ...
//     });
//   }

#include <chrono>
#include <functional>
#include <string>

#include "ddprun/error.h"

namespace ddprun {

struct SpawnOptions {
  /// From asking the others to end (SIGTERM) to making them (SIGKILL), once a rank has failed.
  std::chrono::milliseconds grace = std::chrono::seconds(5);
};

/// A rank of spawn() failed. where().peer is the rank that failed first; ranks that only say that
/// they lost a peer are not held to be the first ones while another one may speak up. The text
/// is what its exception said, or how it ended.
class SpawnError : public Error {
 public:
  SpawnError(int rank, int exit_code, int signal, const std::string& text);
  int exit_code() const noexcept { return exit_code_; }  ///< 128 + signal if a signal ended it.
  int signal() const noexcept { return signal_; }        ///< 0: none did.

 private:
  int exit_code_;
  int signal_;
};

/// Forks `n` processes that each call `body` with their rank, and returns when all of them have
/// ended well. They are one host's ranks 0 .. n - 1 (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR...
/// are set), and meet in a store of this process, on the loopback interface. What this process has
/// in memory they have too, as a copy.
///
/// Must be called before this process has other threads, as these would not be in the children:
/// Error(bad_argument). When a rank fails (throws, exits with another code than 0, is killed), the
/// others are ended and SpawnError is thrown. If this process is killed, so are they. A child ends
/// without running the destructors of static objects. SIGCHLD is not ignored meanwhile, nor by the
/// children, even if it is before.
void spawn(int n, const std::function<void(int rank)>& body, const SpawnOptions& options = {});

}  // namespace ddprun
