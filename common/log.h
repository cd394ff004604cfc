#pragma once
// ddprun's own words to the user: one line each, on standard error, never mixed into workers'
// output.

#include <string>
#include <string_view>

namespace ddprun::log {

enum class Level { kDebug, kInfo, kWarning, kError };

// What is said below `level` is dropped. `who` names the program in each line ("ddprun", "ddprun
// node 1"). Call it once, before the first line and again after a fork that changes who speaks.
void start(std::string who, Level level);

void debug(std::string_view text);
void info(std::string_view text);     // Plain progress: what is being waited for, where to look.
void warning(std::string_view text);  // Something the user did not ask for; the run goes on.
void error(std::string_view text);    // Why this program is about to fail.

}  // namespace ddprun::log
