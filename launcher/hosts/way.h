#pragma once
// How a host of --hosts is reached, and what keeps it from being reached that can be said before.
// Used by hosts_run.cc and by doctor --hosts.

#include <optional>
#include <string>
#include <vector>

#include "launcher/options/options.h"
#include "launcher/plan/facts.h"

namespace ddprun::launcher {

std::string own_program();

// The command that starts the far end on `host`: ssh's, or our own program where that is this
// machine.
std::vector<std::string> far_end_command(const HostEntry& host, const std::vector<std::string>& ssh,
                                         const MachineFacts& facts);

// The command of ssh alone; nothing where `host` is this machine.
std::vector<std::string> way_to(const HostEntry& host, const std::vector<std::string>& ssh,
                                const MachineFacts& facts);

// Where the nodes of a run that --hosts starts meet: below the ephemeral ports, as under Slurm.
std::uint16_t random_meeting_port();

// Names that mean another machine on each of the others.
std::optional<Failure> unreachable_names(const std::vector<HostEntry>& hosts);

// Of --env.
std::optional<Failure> missing_variable(const std::vector<std::string>& names,
                                        const Environment& environment);

}  // namespace ddprun::launcher
