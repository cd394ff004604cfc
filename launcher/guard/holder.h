#pragma once
// The process called ddprun-kept, which a run with --preload-keep leaves behind: it holds a file in
// memory (agent/process/kept_images.h), and nothing else of the run. It has no environment, no
// descriptor and no memory of the launcher's, a session of its own, and is the first that the
// kernel ends where memory is short. It ends when its time is over and no run uses the file, or by
// a signal.

#include <string_view>

#include "common/error.h"
#include "common/system/descriptors.h"

namespace ddprun::launcher {

inline constexpr std::string_view kHolderFlag = "--hold-preload";

// Starts a holder of `file`; returns its process id once it can be found.
Result<int> start_holder(const UniqueFd& file);

// The holder itself, started by ddprun with the flag. Returns its exit code.
int run_holder();

}  // namespace ddprun::launcher
