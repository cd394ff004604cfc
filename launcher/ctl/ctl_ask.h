#pragma once
// One question to a daemon, over the control link, and its whole answer. Called by ctl_main.cc.

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "common/error.h"
#include "launcher/options/options.h"
#include "rendezvous/protocol/wire_command.h"

namespace ddprun::launcher {

// Calls the handler from the loop with the text of the answer, once, within a time limit, unless
// the returned handle is let go before; let go of it before the io_context. A failure's context is
// one sentence for the user: what the daemon said against it, or why there is no daemon, not ours,
// or none that answers.
std::shared_ptr<void> async_ask(boost::asio::io_context& io, const Endpoint& endpoint,
                                const std::string& token, const rendezvous::Command& command,
                                std::function<void(Result<std::string>)> handler);

// The same, blocking.
Result<std::string> ask(const Endpoint& endpoint, const std::string& token,
                        const rendezvous::Command& command);

}  // namespace ddprun::launcher
