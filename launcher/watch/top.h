#pragma once
// `ddprunctl top`: the screen of top_screen.h, over and over, with keys; or once. Called by
// ctl_main.cc.

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>

#include "common/error.h"
#include "common/time.h"
#include "rendezvous/run/status.h"

namespace ddprun::launcher {

struct TopOptions {
  bool once = false;  // So, too, where no screen can be redrawn.
  bool json = false;  // The same as `once`, as a daemon's status.
  Milliseconds interval{2'000};
};

// Asks for the status of all runs without blocking; the handler is called from the loop, once,
// within a time limit, unless the returned handle is let go before.
using OnStatus = std::function<void(Result<rendezvous::DaemonStatus>)>;
using StatusSource =
    std::function<std::shared_ptr<void>(boost::asio::io_context& io, OnStatus handler)>;

// The runs of this user on this machine whose id is `run_id`; empty: all. As their agents know
// them; of a run whose agents do not answer, what its record has.
StatusSource runs_of_this_machine(std::string run_id);

Result<void> run_top(const TopOptions& options, const StatusSource& source);

}  // namespace ddprun::launcher
