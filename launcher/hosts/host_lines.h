#pragma once
// What the script of --host-discovery prints, as in Horovod: a host a line, "host" or "host:slots".
// Pure. Called by host_watch.cc.

#include <string_view>
#include <vector>

#include "common/error.h"
#include "launcher/options/options.h"

namespace ddprun::launcher {

inline constexpr std::size_t kHostLinesBytesMax = 1 << 20;
inline constexpr std::size_t kListedHostsMax = 4'096;  // ssh connections from one machine.

// In the order of the lines. Blank lines count for nothing. A failure says which line is wrong, as
// the end of a sentence: "line 3 'a b' is not a host: ...".
Result<std::vector<HostEntry>> hosts_in_lines(std::string_view output);

}  // namespace ddprun::launcher
