#pragma once
// Opens the endpoint where this node hosts it, and says how the daemon behind it is started.

#include <memory>
#include <string>

#include "agent/guardian.h"
#include "common/error.h"
#include "common/unique_fd.h"
#include "launcher/plan.h"

namespace ddprun::launcher {

// A folder that is removed, with all in it, when its owner goes; by the process that made it only.
class ScratchFolder {
 public:
  static Result<ScratchFolder> make(const std::string& name);
  ScratchFolder(ScratchFolder&& other) noexcept;
  ScratchFolder& operator=(ScratchFolder&&) = delete;
  ~ScratchFolder();
  const std::string& path() const { return path_; }

 private:
  ScratchFolder(std::string path, int owner) : path_(std::move(path)), owner_(owner) {}
  std::string path_;
  int owner_;
};

// The listening socket outlives the daemon: whoever connects while a killed daemon is being
// replaced is served by the next one.
struct HostedEndpoint {
  UniqueFd listening;
  UniqueFd token_file;  // A memory file; none with auth=none.
  ScratchFolder state;
};

// Listens. Where the port is taken and the plan allows it, changes the plan: another port, or
// joining whoever is there, in which case nothing is returned.
Result<std::unique_ptr<HostedEndpoint>> open_endpoint(Plan& plan, const std::string& token);

// The token the plan names: minted, read from its file, or `given` by the environment; empty for
// none. With a token this process's memory is hidden from now on.
Result<std::string> obtain_token(const Plan& plan, const std::string& given);

agent::GuardedChild daemon_child(const HostedEndpoint& endpoint, bool verbose);

}  // namespace ddprun::launcher
