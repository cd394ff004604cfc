#pragma once
// The kernel's log, if this user may read it. Used by agent/health and by the doctor's probe.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>

namespace ddprun::agent {

// Passes each line of the log at `path`, the oldest first, to `take`, until `take` returns false or
// the end is reached. A line is "6,1234,5678901,-;text", the third number being the microseconds
// since the boot. Never waits; no line if the log may not be read.
void read_kernel_log(const std::string& path, const std::function<bool(std::string_view)>& take);

// Those microseconds; nothing if the line does not begin so.
std::optional<std::int64_t> kernel_log_time(std::string_view line);

}  // namespace ddprun::agent
