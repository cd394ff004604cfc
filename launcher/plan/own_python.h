#pragma once
// The interpreter of the Python environment in which this ddprun is installed. Called by decide.cc
// where PYTHON_EXEC does not name one.

#include <string>

#include "agent/node/command.h"

namespace ddprun::launcher {

// The python3 in `bin`, the folder of ddprun's own program, if that folder is of a virtual or conda
// environment, so that such an environment need not be activated. Else "": python3 of PATH is
// meant, as in folders that serve everybody, such as /usr/bin.
std::string own_python(const std::string& bin, const agent::FileProbe& files);

}  // namespace ddprun::launcher
