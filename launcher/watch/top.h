#pragma once
// `ddprunctl top`: shows the screen of top_screen.h repeatedly, with keys; or once. Called by
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
  bool once = false;  // Also set if no screen can be redrawn.
  bool json = false;  // Like `once`, as a daemon's status.
  Milliseconds interval{2'000};
};

// Requests the status of all runs without blocking; the handler is called from the loop, once,
// within a time limit, unless the returned handle is destroyed before.
using OnStatus = std::function<void(Result<rendezvous::DaemonStatus>)>;
using StatusSource =
    std::function<std::shared_ptr<void>(boost::asio::io_context& io, OnStatus handler)>;

// The runs of this user on this machine with the id `run_id`; empty: all. From their agents; if a
// run's agents do not answer, from its record.
StatusSource runs_of_this_machine(std::string run_id);

Result<void> run_top(const TopOptions& options, const StatusSource& source);

}  // namespace ddprun::launcher
