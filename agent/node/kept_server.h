#pragma once
// --preload-keep, the agent's part: finds the fork server that an earlier run has saved, throws it
// away if it does not fit any more, and has that of this run save itself when the run is over. The
// launcher starts the process that holds it then (launcher/guard/holder.h). Owned by Agent.

#include <chrono>
#include <optional>
#include <string>

#include "agent/process/kept_images.h"
#include "agent/workers/posix_process_host.h"

namespace ddprun::agent {

struct KeepOptions {
  std::chrono::minutes time{0};  // After the last run that used it; 0: nothing is kept, or found.
  int file = -1;                 // Where to save it; -1: another agent of this launcher does.
};

class KeptServer {
 public:
  KeptServer(KeepOptions options, PosixProcessHost& processes);

  // What the fork server of `spec` and `modules` is to do. Looks once for one of an earlier run,
  // which stays as long as this agent lives.
  KeepOrder order_for(const WorkerSpec& spec, const std::string& modules);

  // The run is over. Takes up to some tenths of a second, the first time.
  void keep();

 private:
  bool is_wanted() const { return options_.time.count() > 0; }
  void find();
  void discard(const std::string& why);

  KeepOptions options_;
  PosixProcessHost& processes_;
  KeptFacts facts_;  // Of this run's fork server.
  std::optional<KeptImage> found_;
  bool searched_ = false;
};

}  // namespace ddprun::agent
