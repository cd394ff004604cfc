#pragma once
// The queries of ddprunctl: to a running daemon, over the control link, and to the records of past
// runs.

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "common/error.h"
#include "launcher/ctl/ctl_options.h"
#include "launcher/options/options.h"
#include "launcher/page/report_page.h"
#include "rendezvous/protocol/wire_request.h"

namespace ddprun::launcher {

// One request to a daemon, over the control link, and its whole answer. Called by ctl_main.cc.

// Calls the handler from the loop with the text of the answer, once, within a time limit, unless
// the returned handle is destroyed before; destroy it before the io_context. A failure's context is
// one sentence for the user: the daemon's objection, or why there is no daemon, not ours, or none
// that answers.
std::shared_ptr<void> async_query(boost::asio::io_context& io, const Endpoint& endpoint,
                                  const std::string& token, const rendezvous::Command& command,
                                  std::function<void(Result<std::string>)> handler);

// Like async_query(), but blocks.
Result<std::string> query(const Endpoint& endpoint, const std::string& token,
                          const rendezvous::Command& command);

// The runs that have ended, for ddprunctl: those of this machine, and those that a daemon
// remembers. Called by ctl_main.cc.

// Prints the history of this user on this machine, or one run of it.
Result<void> show_own_history(const CtlOptions& options);

// Writes the report of a run of that history. A failure has the reason why there is none.
Result<void> show_own_report(const CtlOptions& options);

// Prints what a run of that history, or of a file with its report, would have been.
Result<void> show_own_whatif(const CtlOptions& options);

// The same from a daemon's answer, as text to print.
Result<std::string> daemon_history_shown(const CtlOptions& options, const std::string& answer);
Result<std::string> report_shown(const CtlOptions& options, const std::string& account,
                                 const PageFacts& facts = {});
Result<std::string> whatif_shown(const CtlOptions& options, const std::string& account);

}  // namespace ddprun::launcher
