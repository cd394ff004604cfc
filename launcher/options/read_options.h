#pragma once
// The raw texts of the options -> Options: PET_* defaults, types, and the contradictions that need
// no knowledge of this machine. Called by parse() after the command line was taken apart. Pure.

#include <map>
#include <string>
#include <vector>

#include "launcher/options/options.h"

namespace ddprun::launcher {

// A command line taken apart, nothing understood yet.
struct RawOptions {
  std::map<std::string, std::string, std::less<>> values;  // By dashed name; a switch is "true".
  std::vector<std::string> rest;                           // The program and all after it.
};

Result<Options> read_options(const RawOptions& raw, const Environment& environment);

}  // namespace ddprun::launcher
