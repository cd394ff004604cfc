#pragma once
// One question to a daemon, over the control link, and its whole answer. Blocks. Called by
// ctl_main.cc.

#include <string>

#include "common/error.h"
#include "launcher/options/options.h"
#include "rendezvous/protocol/wire_command.h"

namespace ddprun::launcher {

// The text of the answer. A failure's context is one sentence for the user: what the daemon said
// against it, or why there is no daemon, not ours, or none that answers.
Result<std::string> ask(const Endpoint& endpoint, const std::string& token,
                        const rendezvous::Command& command);

}  // namespace ddprun::launcher
