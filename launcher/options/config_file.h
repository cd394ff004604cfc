#pragma once
// ~/.config/ddprun/config: defaults of flags, one "flag = value" per line. Pure but for
// read_config_file(). Called by main.cc, which treats the entries as PET_* variables that are not
// set: the command line and the environment win.

#include <map>
#include <string>
#include <string_view>

#include "launcher/options/options.h"

namespace ddprun::launcher {

inline constexpr std::size_t kConfigBytesMax = 65'536;

struct Config {
  struct Entry {
    std::string value;
    int line = 0;
  };
  std::string file;                                   // For errors.
  std::map<std::string, Entry, std::less<>> entries;  // Keys are dashed names.
};

// A failure names file and line: "FILE:3: unknown flag 'nnode'; did you mean nnodes?".
Result<Config> parse_config(std::string_view text, const std::string& file);

// DDPRUN_CONFIG, else $XDG_CONFIG_HOME/ddprun/config, else ~/.config/ddprun/config; empty: none. A
// file that DDPRUN_CONFIG names must be there; DDPRUN_CONFIG= means no file.
std::string config_path(const Environment& environment);
Result<Config> read_config_file(const std::string& path, const Environment& environment);

// `environment` with PET_* variables for entries of the file that the environment does not set.
Environment with_config(Environment environment, const Config& config);

// `error` of parse(), with file and line if it is about a variable that only the file has set.
std::string explained(const std::string& error, const Config& config,
                      const Environment& environment);

}  // namespace ddprun::launcher
